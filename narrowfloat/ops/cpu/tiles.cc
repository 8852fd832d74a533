// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/tiles.h"

#include <algorithm>

namespace narrowfloat {
namespace {

// Elements of a tile: 256 KiB of fp32 or 128 KiB of 16-bit input, which a second-level cache holds
// beside the output.
constexpr std::size_t kTileElements = std::size_t{64} << 10;

// Larger than a core's second-level cache and its share of the third, and small beside memory.
constexpr std::size_t kNontemporalBytes = std::size_t{4} << 20;

}  // namespace

Tile TileGrid::operator[](std::size_t index) const {
  const std::size_t row = index / ColTiles() * row_step, col = index % ColTiles() * col_step;
  return {row, std::min(row + row_step, shape.rows), col, std::min(col + col_step, shape.cols)};
}

TileGrid MakeTileGrid(MatrixShape shape, std::size_t unit_rows, std::size_t unit_cols) {
  if (shape.Size() == 0) return {{0, 0}, unit_rows, unit_cols};
  const std::size_t cols =
      std::min(shape.cols, RoundUp(CeilDiv(kTileElements, unit_rows), unit_cols));
  const std::size_t rows = std::max<std::size_t>(kTileElements / cols / unit_rows, 1) * unit_rows;
  return {shape, std::min(rows, RoundUp(shape.rows, unit_rows)), RoundUp(cols, unit_cols)};
}

bool BypassesCaches(const Execution& execution, std::size_t bytes) {
  if (execution.stores == Stores::kBySize) return bytes >= kNontemporalBytes;
  return execution.stores == Stores::kNontemporal;
}

const KernelTable& Execution::Kernels() const {
  return kernels != nullptr ? *kernels : ActiveKernels();
}

}  // namespace narrowfloat
