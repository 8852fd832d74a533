// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dbias.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/quantize_run.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "quantize_dbias";

// The order of summation is part of the result: this many rows are added one after another, then
// the strips are.
constexpr std::size_t kStripRows = 128;

// Columns of a task: whole rows read fastest, fewer columns make tasks for more threads.
constexpr std::size_t kWideCols = 16384, kSharedCols = 2048, kOwnedCols = 512;

// Tiles begin on multiples of a scheme's unit.
static_assert(std::ranges::all_of(kSchemes, [](const SchemeInfo& scheme) {
  return kOwnedCols % ColUnit(scheme) == 0;
}));

std::size_t Strips(std::size_t rows) {
  return CeilDiv(rows, kStripRows);
}

void CheckDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                std::size_t cols) {
  if (dbias.dtype != in.dtype || dbias.shape != Shape{static_cast<std::int64_t>(cols)} ||
      !IsContiguous(dbias) || (dbias.data == nullptr && cols > 0)) {
    throw InvalidArgument(fmt::format(
        "{}: dbias must be contiguous {} of shape {}, got {} of "
        "shape {}",
        kVerb, DTypeName(in.dtype), cols, DTypeName(dbias.dtype), ShapeText(dbias.shape)));
  }
  if (ExtentOf(in).Overlaps(ExtentOf(dbias)))
    throw InvalidArgument(fmt::format("{}: dbias must not overlap the input", kVerb));
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!ExtentOf(dbias).Overlaps(ExtentOf(out.buffers[i]))) continue;
    throw InvalidArgument(
        fmt::format("{}: dbias must not overlap {}", kVerb, RoleName(static_cast<Role>(i))));
  }
}

void CheckWorkspace(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                    std::span<float> workspace) {
  const auto bytes = std::as_bytes(workspace);
  const Extent extent{bytes.data(), bytes.data() + bytes.size()};
  bool overlaps = extent.Overlaps(ExtentOf(in)) || extent.Overlaps(ExtentOf(dbias));
  for (const TensorView& buffer : out.buffers) overlaps |= extent.Overlaps(ExtentOf(buffer));
  if (!overlaps) return;
  throw InvalidArgument(fmt::format("{}: the workspace must not overlap a tensor", kVerb));
}

/// Tiles of about the size of those of Quantize, but whole strips high or so that strips are.
struct StripTiles {
  std::size_t task_rows;  // whole strips
  std::size_t tile_rows;  // no tile crosses the end of a task
  std::size_t cols;

  StripTiles(const QuantizeRun& run, std::size_t most_cols) {
    const MatrixShape shape = run.rows().shape;
    const TileGrid grid =
        MakeTileGrid({shape.rows, std::min(shape.cols, most_cols)}, run.RowUnit(), run.ColUnit());
    const std::size_t whole = std::lcm(kStripRows, run.RowUnit());
    task_rows = std::max(grid.row_step / whole, std::size_t{1}) * whole;
    tile_rows = std::min(grid.row_step, task_rows);
    cols = grid.col_step;
  }
};

/// Quantizes tiles and adds up their columns while they are in the cache.
class TileSummer {
 public:
  explicit TileSummer(QuantizeRun& run, DType dtype)
      : run_(run), column_sum_(run.kernels().column_sum[static_cast<std::size_t>(dtype)]) {}

  /// All tiles of `task`, from top to bottom. `sums_of(strip)` is where that strip's sums begin
  /// (those of column 0), zero before its first row.
  template <class SumsOf>
  void Run(const Tile& task, std::size_t tile_rows, const SumsOf& sums_of) const {
    for (std::size_t row = task.row_begin; row < task.row_end; row += tile_rows) {
      const Tile tile{row, std::min(row + tile_rows, task.row_end), task.col_begin, task.col_end};
      run_.QuantizeTile(tile);
      for (std::size_t begin = row; begin < tile.row_end;) {
        const std::size_t strip = begin / kStripRows;
        const std::size_t end = std::min((strip + 1) * kStripRows, tile.row_end);
        column_sum_(run_.rows().matrix, {begin, end, tile.col_begin, tile.col_end},
                    sums_of(strip, begin));
        begin = end;
      }
    }
  }

 private:
  QuantizeRun& run_;
  ColumnSumFn column_sum_;
};

template <class... T>
void StoreSums(TypeList<T...>, const TensorView& dbias, std::size_t first, const float* sums,
               std::size_t count) {
  using StoreFn = void (*)(std::byte*, std::size_t, float);
  constexpr StoreFn kStore[] = {&StoreItem<T>...};
  const StoreFn store = kStore[static_cast<std::size_t>(dbias.dtype)];
  for (std::size_t i = 0; i < count; ++i) store(dbias.data, first + i, sums[i]);
}

void AddSums(const float* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

/// Threads share columns: the sums of each strip go to the workspace, and are added up at the end.
void RunShared(QuantizeRun& run, const TensorView& dbias, float* workspace,
               const Execution& execution) {
  const MatrixShape shape = run.rows().shape;
  const bool few = Strips(shape.rows) * CeilDiv(shape.cols, kWideCols) < 4 * ThreadCount(execution);
  const StripTiles tiles(run, few ? kSharedCols : kWideCols);
  const TileGrid tasks{shape, tiles.task_rows, tiles.cols};
  const TileSummer summer(run, dbias.dtype);
  ParallelFor(execution, tasks.Count(), [&](std::size_t i) {
    const Tile task = tasks[i];
    summer.Run(task, tiles.tile_rows, [&](std::size_t strip, std::size_t row) {
      float* sums = workspace + strip * shape.cols;
      if (row % kStripRows == 0) std::fill(sums + task.col_begin, sums + task.col_end, 0.0f);
      return sums;
    });
  });
  ParallelFor(execution, CeilDiv(shape.cols, kOwnedCols), [&](std::size_t i) {
    const std::size_t first = i * kOwnedCols, count = std::min(kOwnedCols, shape.cols - first);
    float sums[kOwnedCols] = {};
    for (std::size_t strip = 0; strip < Strips(shape.rows); ++strip)
      AddSums(workspace + strip * shape.cols + first, count, sums);
    StoreSums(FloatTypes{}, dbias, first, sums, count);
  });
}

/// Each task has columns of its own, and adds up their strips as it comes by them.
void RunOwned(QuantizeRun& run, const TensorView& dbias, const Execution& execution) {
  const MatrixShape shape = run.rows().shape;
  const StripTiles tiles(run, kOwnedCols);
  const TileGrid tasks{shape, shape.rows, tiles.cols};
  const TileSummer summer(run, dbias.dtype);
  ParallelFor(execution, tasks.Count(), [&](std::size_t i) {
    const Tile task = tasks[i];
    const std::size_t count = task.col_end - task.col_begin;
    float strip_sums[kOwnedCols] = {}, sums[kOwnedCols] = {};
    summer.Run(task, tiles.tile_rows, [&](std::size_t strip, std::size_t row) {
      if (row % kStripRows == 0) {
        if (strip > 0) AddSums(strip_sums, count, sums);
        std::fill_n(strip_sums, count, 0.0f);
      }
      return strip_sums - task.col_begin;
    });
    AddSums(strip_sums, count, sums);
    StoreSums(FloatTypes{}, dbias, task.col_begin, sums, count);
  });
}

}  // namespace

Shape DbiasWorkspaceShape(const Shape& shape) {
  const MatrixShape matrix = FlattenShape(shape);
  return {static_cast<std::int64_t>(Strips(matrix.rows)), static_cast<std::int64_t>(matrix.cols)};
}

void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   std::span<float> workspace, const Execution& execution) {
  const MatrixShape shape = FlattenShape(in.shape);
  QuantizeRun run(kVerb, in, out, execution);
  CheckDbias(in, out, dbias, shape.cols);
  CheckWorkspace(in, out, dbias, workspace);
  if (execution.IsNoop()) return;
  run.Begin();
  if (shape.Size() == 0) {
    for (std::size_t c = 0; c < shape.cols; ++c) {
      constexpr float kNothing = 0.0f;
      StoreSums(FloatTypes{}, dbias, c, &kNothing, 1);
    }
  } else if (workspace.size() >= FlattenShape(DbiasWorkspaceShape(in.shape)).Size()) {
    RunShared(run, dbias, workspace.data(), execution);
  } else {
    RunOwned(run, dbias, execution);
  }
  run.End();
}

void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution) {
  std::vector<float> workspace(FlattenShape(DbiasWorkspaceShape(in.shape)).Size());
  QuantizeDbias(in, out, dbias, workspace, execution);
}

}  // namespace narrowfloat
