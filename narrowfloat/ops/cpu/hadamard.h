// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/execution.h"

namespace narrowfloat {

/// Returns the amax of the transform of rows with items of `dtype`, as the columns are quantized
/// under it: rounded to the items' type.
float TransformedAmax(const StridedRows<const std::byte>& rows, DType dtype,
                      std::uint32_t sign_mask, const Execution& execution);

}  // namespace narrowfloat
