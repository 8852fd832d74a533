// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/ops/cpu/atomic_amax.h"
#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {

/// Returns the largest of amax_of(tile) over all tiles, computed in parallel; 0 without tiles.
/// Requires: no amax is NaN or negative.
template <class AmaxOf>
float LargestAmax(const TileGrid& grid, const Execution& execution, const AmaxOf& amax_of) {
  AtomicAmax largest;
  ParallelFor(execution, grid.Count(), [&](std::size_t i) { largest.Update(amax_of(grid[i])); });
  return largest.Get();
}

/// Returns the amax of rows with items of `dtype`.
float AmaxOfRows(const StridedRows<const std::byte>& rows, DType dtype, const Execution& execution);

/// Writes the amax of each row (kRowwise) or column (kColumnwise) to `amaxes`, fp32.
void LineAmaxes(const StridedRows<const std::byte>& rows, DType dtype, Direction direction,
                std::byte* amaxes, const Execution& execution);

}  // namespace narrowfloat
