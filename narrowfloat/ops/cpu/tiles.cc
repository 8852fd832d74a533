// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/tiles.h"

#include <algorithm>

#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat {
namespace {

// Elements of a tile: 256 KiB of fp32 or 128 KiB of 16-bit input, which a second-level cache holds
// beside the output.
constexpr std::size_t kTileElements = std::size_t{64} << 10;

// Larger than a core's second-level cache and its share of the third, and small beside memory.
constexpr std::size_t kNontemporalBytes = std::size_t{4} << 20;

// One direction of a TileGrid: `length` cut after `head`, and then every `step`.
struct Cuts {
  std::size_t length, step, head;

  std::size_t Pieces() const {
    return head == 0 ? CeilDiv(length, step) : 1 + CeilDiv(length - std::min(head, length), step);
  }
  std::size_t BeginOf(std::size_t piece) const {
    return std::min(head == 0 ? piece * step : piece == 0 ? 0 : head + (piece - 1) * step, length);
  }
};

}  // namespace

std::size_t TileGrid::RowTiles() const {
  return Cuts{shape.rows, row_step, row_head}.Pieces();
}
std::size_t TileGrid::ColTiles() const {
  return Cuts{shape.cols, col_step, col_head}.Pieces();
}

Tile TileGrid::operator[](std::size_t index) const {
  const Cuts rows{shape.rows, row_step, row_head}, cols{shape.cols, col_step, col_head};
  const std::size_t row = index / cols.Pieces(), col = index % cols.Pieces();
  return {rows.BeginOf(row), rows.BeginOf(row + 1), cols.BeginOf(col), cols.BeginOf(col + 1)};
}

TileGrid MakeTileGrid(MatrixShape shape, std::size_t unit_rows, std::size_t unit_cols) {
  if (shape.Size() == 0) return {{0, 0}, unit_rows, unit_cols};
  const std::size_t cols =
      std::min(shape.cols, RoundUp(CeilDiv(kTileElements, unit_rows), unit_cols));
  const std::size_t rows = std::max<std::size_t>(kTileElements / cols / unit_rows, 1) * unit_rows;
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

const KernelTable& Execution::Kernels() const {
  return kernels != nullptr ? *kernels : ActiveKernels();
}

}  // namespace narrowfloat
