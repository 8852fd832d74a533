// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/fast_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "narrowfloat/ops/cpu/line_memory.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

// Columns that vector code may read past the last one; rows of sums are multiples of it.
constexpr std::size_t kPadding = 16;

/// Items of some lines of an expanded operand, and the strides along a line and between lines.
struct Items {
  LineMemory memory;
  std::size_t line_step, along_step;

  Items(const OperandExpansion& operand, std::size_t begin, std::size_t end,
        const Execution& execution)
      : memory((end - begin) * (operand.shape.Size() / operand.Lines()) *
               ItemSize(DType::kBFloat16)),
        line_step(operand.rows_are_lines ? operand.shape.cols : 1),
        along_step(operand.rows_are_lines ? 1 : end - begin) {
    Expand(operand, begin, end, memory.data(), execution);
  }
  /// Returns line `line` of these lines.
  const std::byte* Line(std::size_t line) const {
    return memory.data() + line * line_step * ItemSize(DType::kBFloat16);
  }
};

/// Returns one factor per line, then zeros up to the last one that vector code reads.
std::vector<double> FactorsOfLines(const OperandExpansion& operand, std::size_t lines) {
  std::vector<double> factors(operand.factors);
  if (factors.size() == 1) factors.resize(lines, factors[0]);
  factors.resize(RoundUp(lines, kPadding));
  return factors;
}

// Lines of the longer side that a task expands, and lines of the other side per block of sums:
// 4 MiB of sums, which stay in the caches until the factors are applied.
constexpr std::size_t kPanelLines = 1024;

/// A product as tasks: the shorter side is expanded once, and each task expands a panel of
/// the longer side and multiplies it.
class ExpandedRun {
 public:
  ExpandedRun(const GemmProblem& problem, const ProductExpansion& expansion,
              BFloat16MultiplyFn multiply, const Execution& execution)
      : problem_(problem),
        expansion_(expansion),
        multiply_(multiply),
        execution_(execution),
        panels_are_rows_(problem.a.lines >= problem.b.lines),
        shared_(Shared(), 0, Shared().Lines(), execution),
        a_factors_(FactorsOfLines(expansion.a, problem.a.lines)),
        b_factors_(FactorsOfLines(expansion.b, problem.b.lines)),
        writes_result_(SumsAreTheResult()) {
    const KernelTable& table = execution.Kernels();
    finish_ = table.gemm->finish[static_cast<std::size_t>(problem.result.dtype)];
  }

  void Run() {
    const std::size_t lines = Panelled().Lines();
    const std::size_t share = RoundUp(CeilDiv(lines, ThreadCount(execution_)), kExpansionUnit);
    const std::size_t step = std::min(share, kPanelLines);
    std::mutex mutex;
    std::optional<std::string> failure;
    ParallelFor(execution_, CeilDiv(lines, step), [&](std::size_t i) {
      const char* message = RunPanel(i * step, std::min((i + 1) * step, lines));
      if (message == nullptr) return;
      const std::lock_guard lock(mutex);
      failure = message;  // a copy: the text is valid until this thread's next call
    });
    if (!failure) return;
    const ConstQuantizedView &a = expansion_.a.view, &b = expansion_.b.view;
    throw DeviceError(
        fmt::format("qgemm: oneDNN cannot multiply a, {} of shape {}, and b, {} of shape {}: {}",
                    a.spec.scheme->name, ShapeText(a.shape), b.spec.scheme->name,
                    ShapeText(b.shape), *failure));
  }

 private:
  const OperandExpansion& Panelled() const {
    return panels_are_rows_ ? expansion_.a : expansion_.b;
  }
  const OperandExpansion& Shared() const { return panels_are_rows_ ? expansion_.b : expansion_.a; }

  bool SumsAreTheResult() const {
    const GemmResult& result = problem_.result;
    const auto address = reinterpret_cast<std::uintptr_t>(result.rows.data);
    return result.dtype == DType::kFloat32 && result.bias.empty() && !result.accumulates &&
           result.step.function == SumFunction::kNone && expansion_.Factor() == 1.0 &&
           result.rows.row_offsets == nullptr && result.rows.row_stride >= 0 &&
           result.rows.row_stride % static_cast<std::ptrdiff_t>(sizeof(float)) == 0 &&
           address % alignof(float) == 0;
  }

  /// Computes a panel's part of the result. Returns the reason of a failure, or null.
  const char* RunPanel(std::size_t begin, std::size_t end) const {
    const Execution alone = execution_.OnThisThread();  // other threads have their own tasks
    const Items panel(Panelled(), begin, end, alone);
    const std::size_t lines = Shared().Lines();
    const std::size_t step = writes_result_ ? lines : kPanelLines;
    for (std::size_t other = 0; other < lines; other += step) {
      const std::size_t other_end = std::min(other + step, lines);
      const std::byte *mine = panel.Line(0), *others = shared_.Line(other);
      const Tile tile = panels_are_rows_ ? Tile{begin, end, other, other_end}
                                         : Tile{other, other_end, begin, end};
      const Items &a = panels_are_rows_ ? panel : shared_, &b = panels_are_rows_ ? shared_ : panel;
      const char* failure = RunTile(
          tile, {tile.row_end - tile.row_begin, tile.col_end - tile.col_begin, problem_.a.length,
                 panels_are_rows_ ? mine : others, a.line_step, a.along_step,
                 panels_are_rows_ ? others : mine, b.along_step, b.line_step, nullptr, 0});
      if (failure != nullptr) return failure;
    }
    return nullptr;
  }

  const char* RunTile(const Tile& tile, BFloat16Product product) const {
    if (writes_result_) {
      const MatrixRows<std::byte>& rows = problem_.result.rows;
      product.out = reinterpret_cast<float*>(rows.Row(tile.row_begin)) + tile.col_begin;
      product.out_row_step = static_cast<std::size_t>(rows.row_stride) / sizeof(float);
      return multiply_(&product);
    }
    product.out_row_step = RoundUp(product.cols, kPadding);
    const LineMemory sums(product.rows * product.out_row_step * sizeof(float));
    product.out = reinterpret_cast<float*>(sums.data());
    if (const char* failure = multiply_(&product)) return failure;
    Finish(product, tile);
    return nullptr;
  }

  void Finish(const BFloat16Product& product, const Tile& tile) const {
    const GemmResult& result = problem_.result;
    finish_({product.out, product.out_row_step, SumType::kUnscaledDot,
             a_factors_.data() + tile.row_begin, b_factors_.data() + tile.col_begin, problem_.rule,
             result.bias.empty() ? nullptr : result.bias.data() + tile.col_begin, result.step,
             result.accumulates, result.rows, tile});
  }

  const GemmProblem& problem_;
  const ProductExpansion& expansion_;
  const BFloat16MultiplyFn multiply_;
  const Execution& execution_;
  const bool panels_are_rows_;
  const Items shared_;
  const std::vector<double> a_factors_, b_factors_;
  const bool writes_result_;
  FinishFn finish_;
};

}  // namespace

void MultiplyExpanded(const GemmProblem& problem, const ProductExpansion& expansion,
                      BFloat16MultiplyFn multiply, const Execution& execution) {
  ExpandedRun(problem, expansion, multiply, execution).Run();
}

}  // namespace narrowfloat
