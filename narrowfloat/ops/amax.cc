// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/amax.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/strided_rows.h"

namespace narrowfloat {
namespace {

// Columns per task.
constexpr std::size_t kColumns = 1024;

}  // namespace

float Amax(const ConstTensorView& in, const Execution& execution) {
  StridedRows<const std::byte> rows;
  FillRows("amax", "the input", in, rows);
  const AmaxFn amax = execution.Kernels().amax[static_cast<std::size_t>(in.dtype)];
  const FloatEnvironment environment;  // comparisons, too, may flush subnormals
  const TileGrid grid = MakeTileGrid(rows.shape, 1, 1);
  std::vector<float> amaxes(grid.Count());
  ParallelFor(execution, grid.Count(),
              [&](std::size_t i) { amaxes[i] = amax(rows.matrix, grid[i]); });
  return amaxes.empty() ? 0.0f : *std::max_element(amaxes.begin(), amaxes.end());
}

void LineAmaxes(const ConstTensorView& in, Direction direction, std::byte* amaxes,
                const Execution& execution) {
  StridedRows<const std::byte> rows;
  FillRows("amax", "the input", in, rows);
  const KernelTable& kernels = execution.Kernels();
  const auto type = static_cast<std::size_t>(in.dtype);
  const MatrixShape& shape = rows.shape;
  if (direction == Direction::kRowwise) {
    ParallelFor(execution, shape.rows, [&](std::size_t row) {
      const float amax = kernels.amax[type](rows.matrix, {row, row + 1, 0, shape.cols});
      std::memcpy(amaxes + row * sizeof amax, &amax, sizeof amax);
    });
    return;
  }
  ParallelFor(execution, CeilDiv(shape.cols, kColumns), [&](std::size_t i) {
    const Tile tile{0, shape.rows, i * kColumns, std::min(shape.cols, (i + 1) * kColumns)};
    std::vector<float> columns(tile.col_end);
    kernels.column_amax[type](rows.matrix, tile, columns.data());
    std::memcpy(amaxes + tile.col_begin * sizeof(float), columns.data() + tile.col_begin,
                (tile.col_end - tile.col_begin) * sizeof(float));
  });
}

}  // namespace narrowfloat
