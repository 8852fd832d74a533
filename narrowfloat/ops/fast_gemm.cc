// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/fast_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr std::size_t kLine = 64;
// Columns that a vector body may read past the last one; rows of sums are multiples of it.
constexpr std::size_t kPadding = 16;

struct FreeLines {
  void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{kLine}); }
};
using Memory = std::unique_ptr<std::byte, FreeLines>;

/// Memory that begins on a cache line and is not initialized.
Memory Allocate(std::size_t bytes) {
  return Memory(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kLine})));
}

/// Items of an expanded operand, and their steps along a line and from line to line.
struct Items {
  Memory memory;
  std::size_t line_step, along_step;

  Items(const OperandExpansion& operand, const Execution& execution)
      : memory(Allocate(operand.shape.Size() * ItemSize(DType::kBFloat16))),
        line_step(operand.rows_are_lines ? operand.shape.cols : 1),
        along_step(operand.rows_are_lines ? 1 : operand.shape.cols) {
    Expand(operand, memory.get(), execution);
  }
  const std::byte* Line(std::size_t line) const {
    return memory.get() + line * line_step * ItemSize(DType::kBFloat16);
  }
};

/// One factor for each line, and zeros behind them as far as vector bodies read.
std::vector<double> FactorsOfLines(const OperandExpansion& operand, std::size_t lines) {
  std::vector<double> factors(operand.factors);
  if (factors.size() == 1) factors.resize(lines, factors[0]);
  factors.resize(RoundUp(lines, kPadding));
  return factors;
}

class ExpandedRun {
 public:
  ExpandedRun(const GemmProblem& problem, const ProductExpansion& expansion,
              BFloat16MultiplyFn multiply, const Execution& execution)
      : problem_(problem),
        execution_(execution),
        multiply_(multiply),
        a_(expansion.a, execution),
        b_(expansion.b, execution),
        a_factors_(FactorsOfLines(expansion.a, problem.a.lines)),
        b_factors_(FactorsOfLines(expansion.b, problem.b.lines)),
        writes_result_(SumsAreTheResult(expansion)) {
    const KernelTable& table = execution.kernels != nullptr ? *execution.kernels : ActiveKernels();
    finish_ = table.gemm->finish[static_cast<std::size_t>(problem.result.dtype)];
  }

  void Run() {
    const MatrixShape shape{problem_.a.lines, problem_.b.lines};
    // Each thread gets a strip of the longer side, so that the other operand is read once by each.
    const std::size_t strips = ThreadCount(execution_);
    const bool by_rows = shape.rows >= shape.cols;
    const TileGrid grid{shape,
                        by_rows ? RoundUp(CeilDiv(shape.rows, strips), kPadding) : shape.rows,
                        by_rows ? shape.cols : RoundUp(CeilDiv(shape.cols, strips), kPadding)};
    std::atomic<const char*> failure = nullptr;
    ParallelFor(execution_, grid.Count(), [&](std::size_t i) {
      if (const char* message = RunTile(grid[i])) failure = message;
    });
    if (failure != nullptr) {
      throw DeviceError(fmt::format("qgemm: oneDNN cannot multiply: {}", failure.load()));
    }
  }

 private:
  bool SumsAreTheResult(const ProductExpansion& expansion) const {
    const GemmResult& result = problem_.result;
    return result.dtype == DType::kFloat32 && result.bias.empty() && !result.accumulates &&
           expansion.Factor() == 1.0 && result.rows.row_offsets == nullptr &&
           result.rows.row_stride >= 0 &&
           result.rows.row_stride % static_cast<std::ptrdiff_t>(sizeof(float)) == 0;
  }

  const char* RunTile(const Tile& tile) const {
    const std::size_t rows = tile.row_end - tile.row_begin, cols = tile.col_end - tile.col_begin;
    BFloat16Product product{rows,
                            cols,
                            problem_.a.length,
                            a_.Line(tile.row_begin),
                            a_.line_step,
                            a_.along_step,
                            b_.Line(tile.col_begin),
                            b_.along_step,
                            b_.line_step,
                            nullptr,
                            0};
    if (writes_result_) {
      product.out =
          reinterpret_cast<float*>(problem_.result.rows.Row(tile.row_begin)) + tile.col_begin;
      product.out_row_step =
          static_cast<std::size_t>(problem_.result.rows.row_stride) / sizeof(float);
      return multiply_(&product);
    }
    product.out_row_step = RoundUp(cols, kPadding);
    const Memory sums = Allocate(rows * product.out_row_step * sizeof(float));
    product.out = reinterpret_cast<float*>(sums.get());
    if (const char* failure = multiply_(&product)) return failure;
    Finish(product, tile);
    return nullptr;
  }

  void Finish(const BFloat16Product& product, const Tile& tile) const {
    const GemmResult& result = problem_.result;
    finish_({product.out, product.out_row_step, SumType::kUnscaledDot,
             a_factors_.data() + tile.row_begin, b_factors_.data() + tile.col_begin, problem_.rule,
             result.bias.empty() ? nullptr : result.bias.data() + tile.col_begin,
             result.accumulates, result.rows, tile});
  }

  const GemmProblem& problem_;
  const Execution& execution_;
  const BFloat16MultiplyFn multiply_;
  const Items a_, b_;
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
