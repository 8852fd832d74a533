// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/amax.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

// Columns per task.
constexpr std::size_t kColumns = 1024;

}  // namespace

float LargestAmax(const TileGrid& grid, const Execution& execution,
                  const std::function<float(const Tile&)>& amax_of) {
  const FloatEnvironment environment;  // comparisons, too, may flush subnormals
  std::vector<float> amaxes(grid.Count());
  ParallelFor(execution, grid.Count(), [&](std::size_t i) { amaxes[i] = amax_of(grid[i]); });
  return amaxes.empty() ? 0.0f : *std::max_element(amaxes.begin(), amaxes.end());
}

float AmaxOfRows(const StridedRows<const std::byte>& rows, DType dtype,
                 const Execution& execution) {
  const KernelTable& kernels = execution.Kernels();
  const auto amax_of = [&](const Tile& tile) { return kernels.Amax(dtype, rows.matrix, tile); };
  // By reference: std::function would allocate memory for a copy.
  return LargestAmax(MakeTileGrid(rows.shape, 1, 1), execution, std::cref(amax_of));
}

void LineAmaxes(const StridedRows<const std::byte>& rows, DType dtype, Direction direction,
                std::byte* amaxes, const Execution& execution) {
  const KernelTable& kernels = execution.Kernels();
  const MatrixShape& shape = rows.shape;
  if (direction == Direction::kRowwise) {
    ParallelFor(execution, shape.rows, [&](std::size_t row) {
      const float amax = kernels.Amax(dtype, rows.matrix, {row, row + 1, 0, shape.cols});
      std::memcpy(amaxes + row * sizeof amax, &amax, sizeof amax);
    });
    return;
  }
  ParallelFor(execution, CeilDiv(shape.cols, kColumns), [&](std::size_t i) {
    const std::size_t first = i * kColumns, count = std::min(kColumns, shape.cols - first);
    float columns[kColumns];
    kernels.ColumnAmax(dtype, rows.matrix, {0, shape.rows, first, first + count}, columns);
    std::memcpy(amaxes + first * sizeof(float), columns, count * sizeof(float));
  });
}

void CpuBackend::Amax(const ConstTensorView& in, std::byte* amax,
                      const Execution& execution) const {
  StridedRows<const std::byte> rows;
  FillRows(in, rows);
  const float largest = AmaxOfRows(rows, in.dtype, execution);
  std::memcpy(amax, &largest, sizeof largest);
}

}  // namespace narrowfloat
