// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/execution.h"

namespace narrowfloat {

/// A matrix cut into tiles of row_step x col_step, row by row of tiles. If a head is not 0, the
/// first tiles have so many rows or columns, so that the others begin at a cache line.
struct TileGrid {
  MatrixShape shape;
  std::size_t row_step, col_step;
  std::size_t row_head = 0, col_head = 0;

  std::size_t RowTiles() const;
  std::size_t ColTiles() const;
  std::size_t Count() const { return RowTiles() * ColTiles(); }
  Tile operator[](std::size_t index) const;
};

/// Returns tiles of about half a core's second-level cache whose corners are multiples of the
/// units.
TileGrid MakeTileGrid(MatrixShape shape, std::size_t unit_rows, std::size_t unit_cols);

/// Returns the number of items, of `item_bits` each, of every line of a buffer at `at` that lie
/// before its first cache line, where tiles are then cut: 0 if the lines, `stride` bytes apart,
/// differ, or if it is not a multiple of `unit`. 0 stands for a unit that is the whole tensor.
std::size_t HeadOf(const std::byte* at, std::ptrdiff_t stride, std::size_t item_bits,
                   std::size_t unit);

/// Returns true if a buffer of `bytes` is to be written with non-temporal stores: by default, if it
/// is too large to stay in the caches.
bool BypassesCaches(const Execution& execution, std::size_t bytes);

}  // namespace narrowfloat
