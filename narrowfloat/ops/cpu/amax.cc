// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/amax.h"

#include <algorithm>
#include <cstring>

#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {
namespace {

// Columns per task.
constexpr std::size_t kColumns = 1024;

}  // namespace

float AmaxOfRows(const StridedRows<const std::byte>& rows, DType dtype,
                 const Execution& execution) {
  const KernelTable& kernels = execution.Kernels();
  return LargestAmax(MakeTileGrid(rows.shape, 1, 1), execution, [&](const Tile& tile) {
    return kernels.Amax({dtype, rows.matrix, tile});
  });
}

void LineAmaxes(const StridedRows<const std::byte>& rows, DType dtype, Direction direction,
                std::byte* amaxes, const Execution& execution) {
  const KernelTable& kernels = execution.Kernels();
  const MatrixShape& shape = rows.shape;
  if (direction == Direction::kRowwise) {
    ParallelFor(execution, shape.rows, [&](std::size_t row) {
      const float amax = kernels.Amax({dtype, rows.matrix, {row, row + 1, 0, shape.cols}});
      std::memcpy(amaxes + row * sizeof amax, &amax, sizeof amax);
    });
    return;
  }
  ParallelFor(execution, CeilDiv(shape.cols, kColumns), [&](std::size_t i) {
    const std::size_t first = i * kColumns, count = std::min(kColumns, shape.cols - first);
    float columns[kColumns];
    kernels.ColumnAmax({dtype, rows.matrix, {0, shape.rows, first, first + count}}, columns);
    std::memcpy(amaxes + first * sizeof(float), columns, count * sizeof(float));
  });
}

void CpuBackend::Amax(const ConstTensorView& in, std::byte* amax,
                      const Execution& execution) const {
  const StridedRows rows(in);
  const float largest = AmaxOfRows(rows, in.dtype, execution);
  std::memcpy(amax, &largest, sizeof largest);
}

}  // namespace narrowfloat
