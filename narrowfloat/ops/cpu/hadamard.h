// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/execution.h"

namespace narrowfloat {

/// Returns the amax of the Hadamard transform of rows with items of `dtype`, rounded to that type
/// as in columnwise quantization.
float TransformedAmax(const StridedRows<const std::byte>& rows, DType dtype,
                      std::uint32_t sign_mask, const Execution& execution);

}  // namespace narrowfloat
