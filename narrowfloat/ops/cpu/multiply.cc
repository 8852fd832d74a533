// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/fast_gemm.h"
#include "narrowfloat/ops/cpu/gemm_driver.h"
#include "narrowfloat/ops/cpu/slab_gemm.h"
#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

/// Returns the bias as fp32.
std::vector<float> LoadBias(const ConstTensorView& bias) {
  std::vector<float> items(FlattenShape(bias.shape).Size());
  const auto load = ForType(bias.dtype, []<class T>() { return &LoadItem<T>; });
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = load(bias.data, i);
  return items;
}

/// The objects that a product's problem refers to.
struct ProductParts {
  std::unique_ptr<StoredOperand> a, b;
  StridedRows<std::byte> rows;
  std::optional<StridedRows<std::byte>> points;
  GemmResult result;
  GemmRule rule;

  explicit ProductParts(const Product& product)
      : a(MakeGemmOperand(product.a, product.a_direction)),
        b(MakeGemmOperand(product.b, product.b_direction)),
        rows(product.out) {
    const GemmOptions& options = product.options;
    result = {rows.matrix, product.out.dtype, options.output == GemmOutput::kAccumulate, {}, {}};
    result.step.function = options.function;
    if (options.gelu_in) result.step.points = points.emplace(*options.gelu_in).matrix;
    std::optional<DType> bias_dtype;
    if (options.bias) {
      bias_dtype = options.bias->dtype;
      result.bias = LoadBias(*options.bias);
    }
    rule =
        GemmRuleOf(*product.a.spec.scheme, *product.b.spec.scheme, product.out.dtype, bias_dtype);
    if (options.function != SumFunction::kNone)
      rule.bias = rule.accumulate = TermRounding::kAfterTerm;
  }

  GemmProblem Problem() const { return {*a, *b, rule, result}; }
};

}  // namespace

void CpuBackend::Multiply(std::span<const Product> products, GemmMode mode,
                          const Execution& execution) const {
  if (execution.IsNoop()) return;
  const FloatEnvironment environment;  // operands decode their scales on construction
  // kFast needs instructions for bfloat16, and vector kernels.
  if (execution.Kernels().gemm == nullptr || !HasBFloat16Products()) mode = GemmMode::kReproducible;
  std::vector<std::unique_ptr<const ProductParts>> parts;
  // In mode kFast, the products that expand to bfloat16 are multiplied after the others.
  std::vector<std::pair<GemmProblem, ProductExpansion>> expanded;
  std::vector<GemmProblem> others;
  for (const Product& product : products) {
    const GemmProblem problem =
        parts.emplace_back(std::make_unique<const ProductParts>(product))->Problem();
    std::optional<ProductExpansion> expansion;
    if (mode == GemmMode::kFast)
      expansion = PlanExpansion(product.a, product.a_direction, product.b, product.b_direction);
    if (expansion) {
      expanded.emplace_back(problem, *std::move(expansion));
    } else {
      others.push_back(problem);
    }
  }
  const BFloat16MultiplyFn multiply = expanded.empty() ? nullptr : LoadBFloat16Multiply();
  MultiplyAll(others, execution);
  for (const auto& [problem, expansion] : expanded)
    MultiplyExpanded(problem, expansion, multiply, execution);
}

}  // namespace narrowfloat
