// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dbias.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/ops/cpu/atomic_amax.h"
#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/cpu/quantize_run.h"
#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {
namespace {

// The order of summation is part of the result: adds this many rows one after another, then
// adds the strips.
constexpr std::size_t kStripRows = kDbiasStripRows;

// Columns per task: complete rows are read fastest, fewer columns give more tasks for threads.
constexpr std::size_t kWideCols = 16384, kSharedCols = 2048, kOwnedCols = 512;

// Bytes of a tile's items, which fit in a second-level cache. Half as many took up to 5 % longer.
constexpr std::size_t kTileBytes = std::size_t{256} << 10;

// Tiles begin on multiples of a scheme's unit.
static_assert(std::ranges::all_of(kSchemes, [](const SchemeInfo& scheme) {
  return kOwnedCols % ColUnit(scheme) == 0;
}));

std::size_t Strips(std::size_t rows) {
  return CeilDiv(rows, kStripRows);
}

/// The rows that a pass sums, and its other work on a tile.
struct SumPass {
  const StridedRows<const std::byte>& rows;
  DType dtype;  // of the rows' items
  const KernelTable& kernels;
  std::size_t row_unit, col_unit;    // tile corners are multiples of these
  QuantizeRun* quantizer = nullptr;  // quantizes each tile before it is summed, or null
  AtomicAmax* amax = nullptr;        // receives the amax, or null
};

/// Sizes of tasks and tiles. A task has whole strips; a tile has about kTileBytes. Tasks
/// visit their tiles in the order of Quantize, row by row of tiles: kernels prefetch the next
/// tile of that order.
struct StripTiles {
  std::size_t task_rows, task_cols;
  std::size_t tile_rows, tile_cols;  // no tile crosses the end of a task

  StripTiles(const SumPass& pass, std::size_t most_cols) {
    const MatrixShape shape = pass.rows.shape;
    const TileGrid grid = MakeTileGrid({shape.rows, std::min(shape.cols, most_cols)}, pass.row_unit,
                                       pass.col_unit, kTileBytes / ItemSize(pass.dtype));
    const std::size_t whole = std::lcm(kStripRows, pass.row_unit);
    task_rows = std::max(grid.row_step / whole, std::size_t{1}) * whole;
    tile_rows = std::min(grid.row_step, task_rows);
    tile_cols = grid.col_step;
    task_cols = std::max(most_cols / tile_cols, std::size_t{1}) * tile_cols;
  }
};

/// Sums the columns of tiles, each right after its quantization, while it is in the cache. If the
/// amax is needed first, sums in the amax pass instead: memory limits that pass, not arithmetic.
class TileSummer {
 public:
  TileSummer(const SumPass& pass, const StripTiles& tiles) : pass_(pass), tiles_(tiles) {}

  /// Processes all tiles of `task`. `sums_of(part)` returns the sums of the columns of `part`, a
  /// part of a strip; they must be zero before the strip's first row.
  template <class SumsOf>
  void Run(const Tile& task, const SumsOf& sums_of) const {
    for (std::size_t row = task.row_begin; row < task.row_end; row += tiles_.tile_rows) {
      for (std::size_t col = task.col_begin; col < task.col_end; col += tiles_.tile_cols) {
        RunTile({row, std::min(row + tiles_.tile_rows, task.row_end), col,
                 std::min(col + tiles_.tile_cols, task.col_end)},
                sums_of);
      }
    }
  }

 private:
  template <class SumsOf>
  void RunTile(const Tile& tile, const SumsOf& sums_of) const {
    if (pass_.quantizer != nullptr) pass_.quantizer->QuantizeTile(tile);
    Tile part = tile;
    while (part.row_begin < tile.row_end) {
      part.row_end = std::min((part.row_begin / kStripRows + 1) * kStripRows, tile.row_end);
      float amax = 0.0f;
      pass_.kernels.ColumnSum({pass_.dtype, pass_.rows.matrix, part}, sums_of(part),
                              pass_.amax == nullptr ? nullptr : &amax);
      if (pass_.amax != nullptr) pass_.amax->Update(amax);
      part.row_begin = part.row_end;
    }
  }

  const SumPass& pass_;
  StripTiles tiles_;
};

bool BeginsStrip(const Tile& part) {
  return part.row_begin % kStripRows == 0;
}

/// Rounds sums to the type of `dbias`.
void StoreSums(const TensorView& dbias, std::size_t first, const float* sums, std::size_t count) {
  const auto store = ForType(dbias.dtype, []<class T>() { return &StoreItem<T>; });
  for (std::size_t i = 0; i < count; ++i) store(dbias.data, first + i, sums[i]);
}

void AddSums(const float* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

/// Sums with columns that threads share: writes each strip's sums to the workspace, then adds them.
void RunShared(const SumPass& pass, const TensorView& dbias, float* workspace,
               const Execution& execution) {
  const MatrixShape shape = pass.rows.shape;
  const bool few = Strips(shape.rows) * CeilDiv(shape.cols, kWideCols) < 4 * ThreadCount(execution);
  const StripTiles tiles(pass, few ? kSharedCols : kWideCols);
  const TileGrid tasks{shape, tiles.task_rows, tiles.task_cols};
  const TileSummer summer(pass, tiles);
  ParallelFor(execution, tasks.Count(), [&](std::size_t i) {
    summer.Run(tasks[i], [&](const Tile& part) {
      float* sums = workspace + part.row_begin / kStripRows * shape.cols + part.col_begin;
      if (BeginsStrip(part)) std::fill_n(sums, part.col_end - part.col_begin, 0.0f);
      return sums;
    });
  });
  ParallelFor(execution, CeilDiv(shape.cols, kOwnedCols), [&](std::size_t i) {
    const std::size_t first = i * kOwnedCols, count = std::min(kOwnedCols, shape.cols - first);
    float sums[kOwnedCols] = {};
    for (std::size_t strip = 0; strip < Strips(shape.rows); ++strip)
      AddSums(workspace + strip * shape.cols + first, count, sums);
    StoreSums(dbias, first, sums, count);
  });
}

/// Sums with separate columns for each task, which adds a strip as soon as its sum is complete.
void RunOwned(const SumPass& pass, const TensorView& dbias, const Execution& execution) {
  const MatrixShape shape = pass.rows.shape;
  const StripTiles tiles(pass, kOwnedCols);
  const TileGrid tasks{shape, shape.rows, tiles.task_cols};
  const TileSummer summer(pass, tiles);
  ParallelFor(execution, tasks.Count(), [&](std::size_t i) {
    const Tile task = tasks[i];
    const std::size_t count = task.col_end - task.col_begin;
    float strip_sums[kOwnedCols] = {}, sums[kOwnedCols] = {};
    summer.Run(task, [&](const Tile& part) {
      const std::size_t first = part.col_begin - task.col_begin;
      if (BeginsStrip(part)) {
        const std::size_t cols = part.col_end - part.col_begin;
        if (part.row_begin > 0) AddSums(strip_sums + first, cols, sums + first);
        std::fill_n(strip_sums + first, cols, 0.0f);
      }
      return strip_sums + first;
    });
    AddSums(strip_sums, count, sums);
    StoreSums(dbias, task.col_begin, sums, count);
  });
}

std::size_t WorkspaceSize(const MatrixShape& shape) {
  return Strips(shape.rows) * shape.cols;
}

/// Sums the columns by the method that the size of `workspace` allows.
void RunSums(const SumPass& pass, const TensorView& dbias, std::span<float> workspace,
             const Execution& execution) {
  const MatrixShape shape = pass.rows.shape;
  if (shape.Size() == 0) {
    for (std::size_t c = 0; c < shape.cols; ++c) {
      constexpr float kNothing = 0.0f;
      StoreSums(dbias, c, &kNothing, 1);
    }
  } else if (workspace.size() >= WorkspaceSize(shape)) {
    RunShared(pass, dbias, workspace.data(), execution);
  } else {
    RunOwned(pass, dbias, execution);
  }
}

}  // namespace

void CpuBackend::QuantizeDbias(const ConstTensorView& in, const QuantizedView& out,
                               const TensorView& dbias, std::optional<std::span<float>> workspace,
                               const Execution& execution) const {
  if (execution.IsNoop()) return;
  QuantizeRun run(in, out, execution);
  std::vector<float> own;
  if (!workspace) {
    own.resize(WorkspaceSize(run.rows().shape));
    workspace = own;
  }
  SumPass pass{run.rows(), in.dtype, execution.Kernels(), 1, run.ColUnit()};
  if (run.NeedsAmaxPass()) {
    AtomicAmax amax;
    pass.amax = &amax;
    RunSums(pass, dbias, *workspace, execution);
    run.Prepare(amax.Get());
    run.QuantizeTiles();
  } else {
    run.Prepare();
    pass.row_unit = run.RowUnit();
    pass.quantizer = &run;
    RunSums(pass, dbias, *workspace, execution);
    run.QuantizeTiles(1);
  }
  run.Finish();
}

void CpuBackend::ColumnSums(const ConstTensorView& in, const TensorView& sums,
                            const Execution& execution) const {
  const StridedRows rows(in);
  std::vector<float> workspace(WorkspaceSize(rows.shape));
  RunSums({rows, in.dtype, execution.Kernels(), 1, 1}, sums, workspace, execution);
}

}  // namespace narrowfloat
