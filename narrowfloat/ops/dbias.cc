// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dbias.h"

#include <fmt/format.h>

#include <vector>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/input.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

// The order of summation is part of the result: this many rows are added one after another, then
// the strips are.
constexpr std::size_t kStripRows = 128;
constexpr std::size_t kStripCols = 256;

template <class... T>
void StoreSums(TypeList<T...>, DType dtype, std::byte* out, const std::vector<float>& sums) {
  using StoreFn = void (*)(std::byte*, std::size_t, float);
  constexpr StoreFn kStore[] = {&StoreItem<T>...};
  for (std::size_t c = 0; c < sums.size(); ++c) {
    kStore[static_cast<std::size_t>(dtype)](out, c, sums[c]);
  }
}

void CheckDbias(const ConstTensorView& in, const TensorView& dbias, std::size_t cols) {
  if (dbias.dtype != in.dtype || dbias.shape != Shape{static_cast<std::int64_t>(cols)} ||
      !IsContiguous(dbias) || (dbias.data == nullptr && cols > 0)) {
    throw InvalidArgument(
        fmt::format("quantize_dbias: dbias must be contiguous {} of shape {}, got {} of shape {}",
                    DTypeName(in.dtype), cols, DTypeName(dbias.dtype), ShapeText(dbias.shape)));
  }
  if (ExtentOf(in).Overlaps(ExtentOf(dbias))) {
    throw InvalidArgument("quantize_dbias: dbias must not overlap the input");
  }
}

std::vector<float> SumColumns(const ConstTensorView& in, const Rows<const std::byte>& rows,
                              const Execution& execution) {
  const KernelTable& kernels = execution.kernels != nullptr ? *execution.kernels : ActiveKernels();
  const ColumnSumFn column_sum = kernels.column_sum[static_cast<std::size_t>(in.dtype)];
  const TileGrid grid{rows.shape, kStripRows, kStripCols};
  const std::size_t cols = rows.shape.cols;
  std::vector<float> strips(grid.RowTiles() * cols, 0.0f);
  if (rows.shape.Size() > 0) {
    ParallelFor(execution, grid.Count(), [&](std::size_t i) {
      column_sum(rows.matrix, grid[i], strips.data() + i / grid.ColTiles() * cols);
    });
  }
  std::vector<float> sums(cols, 0.0f);
  const FloatEnvironment environment;
  for (std::size_t i = 0; i < strips.size(); ++i) sums[i % cols] += strips[i];
  return sums;
}

}  // namespace

void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution) {
  Rows<const std::byte> rows;
  FillRows("quantize_dbias", "the input", in, rows);
  CheckDbias(in, dbias, rows.shape.cols);
  Quantize(in, out, execution);
  if (execution.IsNoop()) return;
  StoreSums(FloatTypes{}, dbias.dtype, dbias.data, SumColumns(in, rows, execution));
}

}  // namespace narrowfloat
