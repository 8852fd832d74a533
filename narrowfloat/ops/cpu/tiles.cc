// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/tiles.h"

#include <algorithm>

#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat {
namespace {

// Outputs of this size use non-temporal stores: it exceeds a core's share of the caches.
constexpr std::size_t kNontemporalBytes = std::size_t{4} << 20;

// Returns the number of pieces of `length`: the first has `head` items (if not 0), others `step`.
std::size_t Pieces(std::size_t length, std::size_t step, std::size_t head) {
  return head == 0 ? CeilDiv(length, step) : 1 + CeilDiv(length - std::min(head, length), step);
}

}  // namespace

std::size_t TileGrid::RowTiles() const {
  return Pieces(shape.rows, row_step, row_head);
}
std::size_t TileGrid::ColTiles() const {
  return Pieces(shape.cols, col_step, col_head);
}

std::size_t StreamedTileElements(const Execution& execution, MatrixShape shape) {
  constexpr std::size_t kTilesOfThread = 8, kMost = 8 * kTileElements;
  if (shape.Size() <= 2 * kTileElements) return kTileElements;
  return std::clamp(shape.Size() / (kTilesOfThread * ThreadCount(execution)), kTileElements, kMost);
}

TileGrid MakeTileGrid(MatrixShape shape, std::size_t unit_rows, std::size_t unit_cols,
                      std::size_t elements) {
  if (shape.Size() == 0) return {{0, 0}, unit_rows, unit_cols};
  const std::size_t cols = std::min(shape.cols, RoundUp(CeilDiv(elements, unit_rows), unit_cols));
  const std::size_t rows = std::max<std::size_t>(elements / cols / unit_rows, 1) * unit_rows;
  return {shape, std::min(rows, RoundUp(shape.rows, unit_rows)), RoundUp(cols, unit_cols)};
}

std::size_t HeadOf(const std::byte* at, std::ptrdiff_t stride, std::size_t item_bits,
                   std::size_t unit) {
  const std::size_t bits = BytesToLine(at, stride) * 8;
  return bits % (item_bits * std::max<std::size_t>(unit, 1)) == 0 ? bits / item_bits : 0;
}

bool BypassesCaches(const Execution& execution, std::size_t bytes) {
  if (execution.stores == Stores::kBySize) return bytes >= kNontemporalBytes;
  return execution.stores == Stores::kNontemporal;
}

}  // namespace narrowfloat
