// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dbias.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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
void StoreSums(TypeList<T...>, DType dtype, std::byte* out, std::span<const float> sums) {
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

ColumnSumFn ColumnSumOf(const Execution& execution, DType dtype) {
  const KernelTable& kernels = execution.kernels != nullptr ? *execution.kernels : ActiveKernels();
  return kernels.column_sum[static_cast<std::size_t>(dtype)];
}

/// All strips at once, each into its own row of `strips`; then the rows into the first.
void SumByStrips(const ConstTensorView& in, const Rows<const std::byte>& rows,
                 std::span<float> strips, const Execution& execution) {
  const ColumnSumFn column_sum = ColumnSumOf(execution, in.dtype);
  const TileGrid grid{rows.shape, kStripRows, kStripCols};
  const std::size_t cols = rows.shape.cols;
  std::ranges::fill(strips, 0.0f);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    column_sum(rows.matrix, grid[i], strips.data() + i / grid.ColTiles() * cols);
  });
  const FloatEnvironment environment;
  for (std::size_t i = cols; i < strips.size(); ++i) strips[i % cols] += strips[i];
}

/// Columns side by side, each from top to bottom, in the same order of additions.
void SumByColumns(const ConstTensorView& in, const Rows<const std::byte>& rows,
                  const TensorView& dbias, const Execution& execution) {
  const ColumnSumFn column_sum = ColumnSumOf(execution, in.dtype);
  const TileGrid grid{rows.shape, rows.shape.rows, kStripCols};
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    Tile strip = grid[i];
    const std::size_t first = strip.col_begin, count = strip.col_end - first;
    std::array<float, kStripCols> sums{}, part;
    for (std::size_t row = 0; row < rows.shape.rows; row += kStripRows) {
      strip.row_begin = row;
      strip.row_end = std::min(row + kStripRows, rows.shape.rows);
      part.fill(0.0f);
      column_sum(rows.matrix, strip, part.data() - first);
      for (std::size_t c = 0; c < count; ++c) sums[c] += part[c];
    }
    StoreSums(FloatTypes{}, dbias.dtype, dbias.data + first * ItemSize(dbias.dtype),
              {sums.data(), count});
  });
}

}  // namespace

MatrixShape DbiasWorkspaceShape(MatrixShape matrix) {
  return {CeilDiv(matrix.rows, kStripRows), matrix.cols};
}

void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   std::span<float> workspace, const Execution& execution) {
  Rows<const std::byte> rows;
  FillRows("quantize_dbias", "the input", in, rows);
  CheckDbias(in, dbias, rows.shape.cols);
  Quantize(in, out, execution);
  if (execution.IsNoop()) return;
  const std::size_t strips = DbiasWorkspaceShape(rows.shape).Size();
  if (strips == 0) {
    std::fill_n(dbias.data, rows.shape.cols * ItemSize(dbias.dtype), std::byte{0});
  } else if (workspace.size() < strips) {
    SumByColumns(in, rows, dbias, execution);
  } else {
    SumByStrips(in, rows, workspace.first(strips), execution);
    StoreSums(FloatTypes{}, dbias.dtype, dbias.data, workspace.first(rows.shape.cols));
  }
}

void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution) {
  std::vector<float> workspace(DbiasWorkspaceShape(FlattenShape(in.shape)).Size());
  QuantizeDbias(in, out, dbias, workspace, execution);
}

}  // namespace narrowfloat
