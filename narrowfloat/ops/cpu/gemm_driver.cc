// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/gemm_driver.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>
#include <vector>

#include "narrowfloat/ops/cpu/line_memory.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {
namespace {

// Positions per pass over the panels: 12 KiB of an AVX-512 panel of `a` and 64 KiB of two
// panels of `b` stay in the first and second-level cache.
constexpr std::size_t kChunk = 256;
// Columns of the result per task, and the largest number of rows: their sums stay in the
// second-level cache.
constexpr std::size_t kTaskCols = 64, kTaskRows = 768;
// With fewer rows than this a task spends too much time on decoding panels of `b`.
constexpr std::size_t kLeastTaskRows = 96;
constexpr std::size_t kTasksPerThread = 4;

/// Choice of the body, its functions and the positions per pass for a problem.
struct Method {
  const GemmBody* body = nullptr;
  PackFn pack_a = nullptr, pack_b = nullptr;
  MicroTileFn multiply = nullptr;
  FinishFn finish = nullptr;
  SumType type = SumType::kBinary64;
  std::size_t chunk = 0;  // positions; whole slabs, unless the line is one slab

  std::size_t SumBytes() const { return type == SumType::kBinary64 ? 8 : 4; }
};

/// Chooses the method of a problem; without a body if only the reference can compute the product.
Method ChooseMethod(const GemmProblem& problem, const GemmKernels* kernels) {
  const StoredOperand &a = problem.a, &b = problem.b;
  Method method;
  if (kernels == nullptr || a.length == 0) return method;
  const bool packed = a.element_bits < 8;
  if (packed && !(a.stored.positions_are_adjacent && b.stored.positions_are_adjacent))
    return method;
  const bool is_binary64 = problem.rule.sum == SlabSum::kBinary64;
  const GemmBody& nibbles = kernels->nibbles;
  const bool fits = packed && is_binary64 && nibbles.rows > 0 && a.slab == nibbles.unit;
  method.body = fits ? &nibbles : &kernels->floats;
  method.pack_a = method.body->pack[a.element].a;
  method.pack_b = method.body->pack[b.element].b;
  const bool one_slab = a.slab >= a.length && is_binary64 && method.body->add_products != nullptr;
  method.type = one_slab      ? SumType::kUnscaledDot
                : is_binary64 ? SumType::kBinary64
                              : SumType::kFloat;
  method.multiply = one_slab ? method.body->add_products
                             : method.body->add_slabs[static_cast<std::size_t>(problem.rule.sum)];
  method.finish = kernels->finish[static_cast<std::size_t>(problem.result.dtype)];
  method.chunk = one_slab ? kChunk : std::max(kChunk / a.slab, std::size_t{1}) * a.slab;
  return method;
}

/// Writes the scales of a panel, [slab][panel line], as doubles; lines past `line_end` get 0.
void PackScales(const StoredOperand& operand, std::size_t line_begin, std::size_t line_end,
                std::size_t slab_begin, std::size_t slab_end, std::size_t panel_lines,
                double* out) {
  float scales[kTaskCols];
  for (std::size_t slab = slab_begin; slab < slab_end; ++slab, out += panel_lines) {
    operand.Scales(line_begin, line_end, slab, scales);
    std::fill(std::copy(scales, scales + (line_end - line_begin), out), out + panel_lines, 0.0);
  }
}

std::size_t SlabCount(const StoredOperand& operand, std::size_t length) {
  return CeilDiv(length, operand.slab);
}

/// Rows of one problem; their panels of `a` are packed together.
struct Part {
  const GemmProblem& problem;
  const Method& method;
  std::size_t row_begin, row_end;
  std::byte* memory = nullptr;  // of Bytes() bytes: panels, then scales

  std::size_t PanelBytes() const {
    const GemmBody& body = *method.body;
    return RoundUp(CeilDiv(problem.a.length, body.unit) * body.a_unit_bytes, kLineBytes);
  }
  std::size_t PanelScales() const {
    return SlabCount(problem.a, problem.a.length) * method.body->rows;
  }
  std::size_t PanelCount() const { return CeilDiv(row_end - row_begin, method.body->rows); }
  std::size_t Bytes() const {
    return RoundUp(PanelCount() * (PanelBytes() + PanelScales() * sizeof(double)), kLineBytes);
  }
  std::byte* Panel(std::size_t index) const { return memory + index * PanelBytes(); }
  double* Scales(std::size_t index) const {
    return reinterpret_cast<double*>(memory + PanelCount() * PanelBytes()) + index * PanelScales();
  }
  void Pack(std::size_t index) const {
    const StoredOperand& a = problem.a;
    const std::size_t begin = row_begin + index * method.body->rows;
    const std::size_t end = std::min(begin + method.body->rows, row_end);
    method.pack_a({a.stored, {begin, end, 0, a.length}, Panel(index)});
    PackScales(a, begin, end, 0, SlabCount(a, a.length), method.body->rows, Scales(index));
  }
};

/// Memory of one task: some panels of `b` over one chunk, and the sums.
struct Scratch {
  LineMemory panels, scales, sums;
  std::size_t panel_bytes, panel_scales, sum_bytes;
};

/// Pool of scratches that later tasks reuse; at most as many as tasks ran at the same time. Each is
/// a list of one entry, which returns to the pool without an allocation.
class ScratchPool {
 public:
  std::list<Scratch> Take(std::size_t panels, std::size_t scales, std::size_t sums) {
    std::list<Scratch> taken;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find_if(idle_, [&](const Scratch& scratch) {
        return scratch.panel_bytes >= panels && scratch.panel_scales >= scales &&
               scratch.sum_bytes >= sums;
      });
      if (found != idle_.end()) taken.splice(taken.begin(), idle_, found);
    }
    if (taken.empty()) {
      taken.push_back({LineMemory(panels), LineMemory(scales * sizeof(double)), LineMemory(sums),
                       panels, scales, sums});
    }
    return taken;
  }
  void Give(std::list<Scratch>& scratch) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.splice(idle_.begin(), scratch);
  }

 private:
  std::mutex mutex_;
  std::list<Scratch> idle_;
};

/// A part of the result that one task computes.
struct Task {
  const Part* part;
  Tile tile;
};

/// One task's loop over its tile: chunk by chunk, and panel of `a` by panel of `a` within a chunk.
class TileRun {
 public:
  TileRun(const Task& task, ScratchPool& pool)
      : part_(*task.part),
        problem_(part_.problem),
        method_(part_.method),
        body_(*method_.body),
        tile_(task.tile),
        b_panels_(CeilDiv(tile_.col_end - tile_.col_begin, body_.cols)),
        first_panel_((tile_.row_begin - part_.row_begin) / body_.rows),
        a_panels_(CeilDiv(tile_.row_end - tile_.row_begin, body_.rows)),
        chunk_(std::min(method_.chunk, RoundUp(problem_.a.length, body_.unit))),
        b_bytes_(RoundUp(CeilDiv(chunk_, body_.unit) * body_.b_unit_bytes, kLineBytes)),
        b_scales_(SlabCount(problem_.b, chunk_) * body_.cols),
        sum_bytes_(body_.rows * body_.cols * method_.SumBytes()),
        pool_(pool),
        taken_(pool.Take(b_panels_ * b_bytes_, b_panels_ * b_scales_,
                         a_panels_ * b_panels_ * sum_bytes_)),
        scratch_(taken_.front()) {}
  ~TileRun() { pool_.Give(taken_); }
  TileRun(const TileRun&) = delete;
  TileRun& operator=(const TileRun&) = delete;

  void Run() {
    std::memset(scratch_.sums.data(), 0, a_panels_ * b_panels_ * sum_bytes_);
    for (std::size_t begin = 0; begin < problem_.a.length; begin += method_.chunk) {
      const std::size_t end = std::min(begin + method_.chunk, problem_.a.length);
      PackColumns(begin, end);
      for (std::size_t i = 0; i < a_panels_; ++i) {
        for (std::size_t j = 0; j < b_panels_; ++j) Multiply(i, j, begin, end);
      }
    }
    for (std::size_t i = 0; i < a_panels_; ++i) {
      for (std::size_t j = 0; j < b_panels_; ++j) Finish(i, j);
    }
  }

 private:
  std::size_t RowOf(std::size_t i) const { return tile_.row_begin + i * body_.rows; }
  std::size_t ColOf(std::size_t j) const { return tile_.col_begin + j * body_.cols; }
  std::size_t RowEnd(std::size_t i) const { return std::min(RowOf(i) + body_.rows, tile_.row_end); }
  std::size_t ColEnd(std::size_t j) const { return std::min(ColOf(j) + body_.cols, tile_.col_end); }
  std::byte* Columns(std::size_t j) const { return scratch_.panels.data() + j * b_bytes_; }
  double* ColumnScales(std::size_t j) const {
    return reinterpret_cast<double*>(scratch_.scales.data()) + j * b_scales_;
  }
  std::byte* Sums(std::size_t i, std::size_t j) const {
    return scratch_.sums.data() + (i * b_panels_ + j) * sum_bytes_;
  }

  void PackColumns(std::size_t begin, std::size_t end) {
    const std::size_t slab = begin / problem_.b.slab;
    for (std::size_t j = 0; j < b_panels_; ++j) {
      method_.pack_b({problem_.b.stored, {ColOf(j), ColEnd(j), begin, end}, Columns(j)});
      PackScales(problem_.b, ColOf(j), ColEnd(j), slab, slab + SlabCount(problem_.b, end - begin),
                 body_.cols, ColumnScales(j));
    }
  }

  void Multiply(std::size_t i, std::size_t j, std::size_t begin, std::size_t end) {
    const std::size_t panel = first_panel_ + i;
    method_.multiply({part_.Panel(panel) + begin / body_.unit * body_.a_unit_bytes, Columns(j),
                      part_.Scales(panel) + begin / problem_.a.slab * body_.rows, ColumnScales(j),
                      end - begin, problem_.a.slab, RowEnd(i) - RowOf(i), Sums(i, j)});
  }

  void Finish(std::size_t i, std::size_t j) {
    const GemmResult& result = problem_.result;
    const float* bias = result.bias.empty() ? nullptr : result.bias.data() + ColOf(j);
    method_.finish({Sums(i, j),
                    body_.cols,
                    method_.type,
                    part_.Scales(first_panel_ + i),
                    ColumnScales(j),
                    problem_.rule,
                    bias,
                    result.step,
                    result.accumulates,
                    result.rows,
                    {RowOf(i), RowEnd(i), ColOf(j), ColEnd(j)}});
  }

  const Part& part_;
  const GemmProblem& problem_;
  const Method& method_;
  const GemmBody& body_;
  const Tile tile_;
  const std::size_t b_panels_, first_panel_, a_panels_, chunk_, b_bytes_, b_scales_, sum_bytes_;
  ScratchPool& pool_;
  std::list<Scratch> taken_;
  const Scratch& scratch_;
};

/// Parts that run together, and the memory of their panels.
class Batch {
 public:
  explicit Batch(const Execution& execution) : execution_(execution) {}

  /// Adds a part; runs the batch first if the panels of both would exceed kGemmPanelBytes.
  void Add(const Part& part) {
    if (bytes_ > 0 && bytes_ + part.Bytes() > kGemmPanelBytes) Run();
    parts_.push_back(part);
    bytes_ += part.Bytes();
  }

  void Run() {
    if (memory_bytes_ < bytes_) {
      memory_ = LineMemory(bytes_);
      memory_bytes_ = bytes_;
    }
    std::byte* next = memory_.data();
    for (Part& part : parts_) {
      part.memory = next;
      next += part.Bytes();
    }
    PackParts();
    const std::vector<Task> tasks = CutTasks();
    ParallelFor(execution_, tasks.size(), [&](std::size_t i) { TileRun(tasks[i], pool_).Run(); });
    parts_.clear();
    bytes_ = 0;
  }

 private:
  // Panels that one task packs.
  static constexpr std::size_t kPanelsPerTask = 4;

  void PackParts() const {
    struct Panels {
      const Part* part;
      std::size_t begin, end;
    };
    std::vector<Panels> tasks;
    for (const Part& part : parts_) {
      for (std::size_t i = 0; i < part.PanelCount(); i += kPanelsPerTask)
        tasks.push_back({&part, i, std::min(i + kPanelsPerTask, part.PanelCount())});
    }
    ParallelFor(execution_, tasks.size(), [&](std::size_t i) {
      for (std::size_t j = tasks[i].begin; j < tasks[i].end; ++j) tasks[i].part->Pack(j);
    });
  }

  static std::size_t ColTiles(const Part& part) { return CeilDiv(part.problem.b.lines, kTaskCols); }

  /// Cuts the parts' results into tiles, so that every thread gets work.
  std::vector<Task> CutTasks() const {
    std::size_t count = 0;
    for (const Part& part : parts_)
      count += ColTiles(part) * CeilDiv(part.row_end - part.row_begin, kTaskRows);
    const std::size_t threads = ThreadCount(execution_);
    const std::size_t wanted = threads == 1 ? 1 : threads * kTasksPerThread;
    const std::size_t pieces = CeilDiv(wanted, std::max<std::size_t>(count, 1));
    std::vector<Task> tasks;
    for (const Part& part : parts_) {
      const std::size_t piece = CeilDiv(part.row_end - part.row_begin, pieces);
      const std::size_t rows =
          RoundUp(std::clamp(piece, kLeastTaskRows, kTaskRows), part.method.body->rows);
      const TileGrid grid{{part.row_end - part.row_begin, part.problem.b.lines}, rows, kTaskCols};
      for (std::size_t i = 0; i < grid.Count(); ++i) {
        Tile tile = grid[i];
        tile.row_begin += part.row_begin;
        tile.row_end += part.row_begin;
        tasks.push_back({&part, tile});
      }
    }
    return tasks;
  }

  const Execution& execution_;
  std::vector<Part> parts_;
  std::size_t bytes_ = 0, memory_bytes_ = 0;
  LineMemory memory_;
  ScratchPool pool_;
};

/// Adds a problem's parts, each of as many rows as the panels' memory allows.
void AddParts(const GemmProblem& problem, const Method& method, Batch& batch) {
  const std::size_t panel = Part{problem, method, 0, 1}.Bytes();
  const std::size_t rows = std::max<std::size_t>(kGemmPanelBytes / panel, 1) * method.body->rows;
  for (std::size_t row = 0; row < problem.a.lines; row += rows)
    batch.Add({problem, method, row, std::min(row + rows, problem.a.lines)});
}

/// Runs the reference, tile by tile.
void RunReference(const GemmProblem& problem, const Execution& execution) {
  const TileGrid grid{{problem.a.lines, problem.b.lines}, kGemmTileRows, kGemmTileCols};
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    MultiplyTile(problem.a, problem.b, problem.rule, grid[i], problem.result);
  });
}

}  // namespace

void MultiplyAll(std::span<const GemmProblem> problems, const Execution& execution) {
  const KernelTable& table = execution.Kernels();
  std::vector<Method> methods;
  for (const GemmProblem& problem : problems) methods.push_back(ChooseMethod(problem, table.gemm));
  Batch batch(execution);
  for (std::size_t i = 0; i < problems.size(); ++i) {
    if (problems[i].a.lines == 0 || problems[i].b.lines == 0) continue;
    if (methods[i].body == nullptr) {
      RunReference(problems[i], execution);
    } else {
      AddParts(problems[i], methods[i], batch);
    }
  }
  batch.Run();
}

}  // namespace narrowfloat
