// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Returns the largest magnitude of a tensor; 0 for an empty one. Ignores NaN; counts infinity.
/// Errors: InvalidArgument if `in` is not a tensor of floats with adjacent items in a row.
float Amax(const ConstTensorView& in, const Execution& execution = {});

/// Writes the largest magnitude of each row (kRowwise) or column (kColumnwise) of the flattened
/// tensor to `amaxes`, fp32. Errors: as Amax.
void LineAmaxes(const ConstTensorView& in, Direction direction, std::byte* amaxes,
                const Execution& execution = {});

}  // namespace narrowfloat
