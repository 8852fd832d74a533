// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/execution.h"

namespace narrowfloat {

/// A matrix cut into tiles of row_step x col_step, row by row of tiles. If a head is not 0, it is
/// the number of rows or columns of the first tiles, so that the others begin at a cache line.
struct TileGrid {
  MatrixShape shape;
  std::size_t row_step, col_step;
  std::size_t row_head = 0, col_head = 0;

  std::size_t RowTiles() const;
  std::size_t ColTiles() const;
  std::size_t Count() const { return RowTiles() * ColTiles(); }
  /// Returns the tile of an index. Inline, so that a task copies it from registers: a load that
  /// covers two earlier stores stalls until the last tile's non-temporal stores have completed.
  Tile operator[](std::size_t index) const {
    const std::size_t cols = ColTiles(), row = index / cols, col = index % cols;
    return {
        Begin(row, row_step, row_head, shape.rows), Begin(row + 1, row_step, row_head, shape.rows),
        Begin(col, col_step, col_head, shape.cols), Begin(col + 1, col_step, col_head, shape.cols)};
  }

 private:
  /// Returns the start of piece `i` of `length`: the first piece has `head` items (if not 0), the
  /// others have `step`.
  static std::size_t Begin(std::size_t i, std::size_t step, std::size_t head, std::size_t length) {
    return std::min(head == 0 ? i * step : i == 0 ? 0 : head + (i - 1) * step, length);
  }
};

/// Elements of a tile: 256 KiB of fp32 or 128 KiB of 16-bit input, which fit in a second-level
/// cache together with the output.
inline constexpr std::size_t kTileElements = std::size_t{64} << 10;

/// Returns the number of elements of a tile for kernels that do not need a tile in a cache: an
/// eighth of a thread's share, at least kTileElements and at most 8 times that. Each tile ends with
/// a fence for its non-temporal stores. In tiles of kTileElements, fences took a tenth of the time
/// of decoding FP8.
std::size_t StreamedTileElements(const Execution& execution, MatrixShape shape);

/// Returns tiles of about `elements` elements, with corners at multiples of the units.
TileGrid MakeTileGrid(MatrixShape shape, std::size_t unit_rows, std::size_t unit_cols,
                      std::size_t elements = kTileElements);

/// Returns the number of items, of `item_bits` each, from the start of every line of a buffer `at`
/// to the next start of a cache line; tiles are cut there. Returns 0 if this number differs between
/// lines, `stride` bytes apart, or is not a multiple of `unit` (0 means 1).
std::size_t HeadOf(const std::byte* at, std::ptrdiff_t stride, std::size_t item_bits,
                   std::size_t unit);

/// Returns true if a buffer of `bytes` is written with non-temporal stores: by default, if it is
/// too large for the caches.
bool BypassesCaches(const Execution& execution, std::size_t bytes);

}  // namespace narrowfloat
