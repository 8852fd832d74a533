// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/transpose_codes.h"

#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {

void TransposeCodes(const std::byte* in, std::byte* out, MatrixShape matrix,
                    const Execution& execution) {
  // A tile has as many rows as a cache line has bytes, so that one task writes each line of the
  // output completely.
  constexpr std::size_t kRun = 64;
  const TileGrid grid = MakeTileGrid(matrix, kRun, kRun);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    const Tile tile = grid[i];
    for (std::size_t col = tile.col_begin; col < tile.col_end; ++col) {
      for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
        out[col * matrix.rows + row] = in[row * matrix.cols + col];
      }
    }
  });
}

}  // namespace narrowfloat
