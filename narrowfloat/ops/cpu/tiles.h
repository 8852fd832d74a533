// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/execution.h"

namespace narrowfloat {

/// A matrix cut into tiles of row_step x col_step, row by row of tiles.
struct TileGrid {
  MatrixShape shape;
  std::size_t row_step, col_step;

  std::size_t RowTiles() const { return CeilDiv(shape.rows, row_step); }
  std::size_t ColTiles() const { return CeilDiv(shape.cols, col_step); }
  std::size_t Count() const { return RowTiles() * ColTiles(); }
  Tile operator[](std::size_t index) const;
};

/// Returns tiles of about half a core's second-level cache whose corners are multiples of the
/// units.
TileGrid MakeTileGrid(MatrixShape shape, std::size_t unit_rows, std::size_t unit_cols);

/// Returns true if a buffer of `bytes` is to be written with non-temporal stores: by default, if it
/// is too large to stay in the caches.
bool BypassesCaches(const Execution& execution, std::size_t bytes);

}  // namespace narrowfloat
