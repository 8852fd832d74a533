// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/cpu/tiles.h"

namespace narrowfloat {

/// Returns the largest of amax_of(tile) over all tiles, computed in parallel; 0 without tiles.
float LargestAmax(const TileGrid& grid, const Execution& execution,
                  const std::function<float(const Tile&)>& amax_of);

/// Returns the amax of rows with items of `dtype`.
float AmaxOfRows(const StridedRows<const std::byte>& rows, DType dtype, const Execution& execution);

/// Writes the amax of each row (kRowwise) or column (kColumnwise) to `amaxes`, fp32.
void LineAmaxes(const StridedRows<const std::byte>& rows, DType dtype, Direction direction,
                std::byte* amaxes, const Execution& execution);

}  // namespace narrowfloat
