// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/layout.h"

#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {

bool HasWholeBlocks(const SchemeInfo& scheme, MatrixShape matrix) {
  const std::size_t block = scheme.block.cols;
  return scheme.HasOneScale() || (matrix.rows % block == 0 && matrix.cols % block == 0);
}

ScaleGrid MakeScaleGrid(const SchemeInfo& scheme, Direction direction, MatrixShape matrix) {
  const SchemeLayout& layout = scheme.layout;
  const bool rowwise = direction == Direction::kRowwise;
  ScaleGrid grid{1, 1, 1, 1, rowwise ? layout.rowwise_order : layout.columnwise_order};
  if (scheme.HasOneScale()) return grid;
  // A columnwise block is the rowwise one transposed, so that block.cols is its length along a line
  // in both directions.
  grid.lines = CeilDiv(rowwise ? matrix.rows : matrix.cols, layout.lines_per_scale);
  grid.blocks = CeilDiv(rowwise ? matrix.cols : matrix.rows, scheme.block.cols);
  grid.padded_lines = RoundUp(grid.lines, layout.line_multiple);
  grid.padded_blocks = RoundUp(grid.blocks, layout.block_multiple);
  return grid;
}

ScaleStrides MakeScaleStrides(const ScaleGrid& grid, ScalePlacement placement) {
  if (placement == ScalePlacement::kSwizzled) {
    // swz(i, j) = (i/128 * T + j/4) * 512 + i%32 * 16 + i%128/32 * 4 + j%4, T = tiles along the
    // blocks.
    constexpr std::size_t kTile = kSwizzleLines * kSwizzleBlocks;
    const std::size_t tiles = CeilDiv(grid.padded_blocks, kSwizzleBlocks);
    return {tiles * kTile, kSwizzleBlocks, kTile / kSwizzleQuarter, kTile, 1};
  }
  const bool line_major = grid.order == ScaleOrder::kLineMajor;
  const std::size_t line = line_major ? grid.padded_blocks : 1;
  const std::size_t block = line_major ? 1 : grid.padded_lines;
  return {kSwizzleLines * line, kSwizzleQuarter * line, line, kSwizzleBlocks * block, block};
}

}  // namespace narrowfloat
