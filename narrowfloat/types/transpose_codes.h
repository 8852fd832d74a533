// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat {

/// Transposes bytes: out[col][row] = in[row][col].
/// Shapes: in is matrix.rows x matrix.cols bytes, row-major; out the transposed.
void TransposeCodes(const std::byte* in, std::byte* out, MatrixShape matrix,
                    const Execution& execution);

}  // namespace narrowfloat
