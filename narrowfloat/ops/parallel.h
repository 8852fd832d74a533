// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

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

/// Tiles of about a core's share of its second-level cache, whose corners are multiples of the
/// units.
TileGrid MakeTileGrid(MatrixShape shape, std::size_t unit_rows, std::size_t unit_cols);

/// Whether a buffer of so many bytes is to be written past the caches. By its size, that is so
/// where they could not keep it for whoever reads it next.
bool BypassesCaches(const Execution& execution, std::size_t bytes);

/// Calls task(i) once for each i below `count`, each under a FloatEnvironment, on the caller's pool
/// or on oneTBB; returns when all are done. One task, or one thread, runs on the calling thread
/// alone, and so does everything in a child that was forked after a parallel call, whose worker
/// threads stayed behind in the parent.
void ParallelFor(const Execution& execution, std::size_t count,
                 const std::function<void(std::size_t)>& task);

}  // namespace narrowfloat
