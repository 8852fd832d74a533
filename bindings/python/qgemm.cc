// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/qgemm.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string_view>
#include <vector>

#include "bindings/python/array.h"
#include "bindings/python/docs.h"
#include "bindings/python/options.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/ops/gemm_expansion.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

constexpr const char* kVerb = "qgemm";
constexpr const char* kGroupedVerb = "grouped_qgemm";

/// Returns the function to apply to the sum. Errors: InvalidArgument for grad without gelu.
SumFunction FunctionOf(bool gelu, bool grad) {
  if (grad && !gelu) {
    throw InvalidArgument("qgemm: grad=True needs gelu=True");
  }
  if (!gelu) return SumFunction::kNone;
  return grad ? SumFunction::kTimesGeluGradient : SumFunction::kGelu;
}

/// Views gelu_in: for reading with grad, else for writing. Errors: as ViewInput and ViewOutput.
ArrayView ViewGeluIn(const nb::object& gelu_in, bool grad, DType dtype, const Shape& shape) {
  if (gelu_in.is_none()) return {};
  return grad ? ViewInput(kVerb, gelu_in, "gelu_in")
              : ViewOutput(kVerb, gelu_in, dtype, shape, "gelu_in");
}

nb::object QgemmArrays(const nb::object& a, const nb::object& b, const nb::object& bias,
                       const nb::object& out, bool accumulate, std::string_view layout,
                       const nb::object& dtype, std::optional<std::string_view> mode, bool gelu,
                       const nb::object& gelu_in, bool grad, const nb::kwargs& kwargs) {
  const Execution execution = ParseExecution(kVerb, kwargs);
  GemmOptions options{.layout = FindGemmLayout(layout)};
  if (mode) options.mode = FindGemmMode(*mode);
  const DType wanted = ParseFloatDType(kVerb, dtype);
  if (accumulate && out.is_none()) {
    throw InvalidArgument("qgemm: accumulate=True needs out, got None");
  }
  if (accumulate) options.output = GemmOutput::kAccumulate;
  const TensorMemory held_a = ViewBuffers(kVerb, ParseTensor(kVerb, "a", a));
  const TensorMemory held_b = ViewBuffers(kVerb, ParseTensor(kVerb, "b", b));
  const ArrayView held_bias = bias.is_none() ? ArrayView{} : ViewInput(kVerb, bias, "bias");
  if (!bias.is_none()) options.bias = held_bias.Input();
  const Shape shape = QgemmShape(held_a.view, held_b.view, options.layout);
  nb::object result = out.is_none() ? NewArray(wanted, shape) : out;
  const ArrayView held_out = ViewOutput(kVerb, result, wanted, shape);
  options.function = FunctionOf(gelu, grad);
  const ArrayView held_gelu_in = ViewGeluIn(gelu_in, grad, wanted, shape);
  if (!gelu_in.is_none()) options.gelu_in = held_gelu_in.view;
  const nb::gil_scoped_release unlocked;
  Qgemm(held_a.view, held_b.view, held_out.view, options, execution);
  return result;
}

/// Returns the items of a sequence. Errors: TypeError naming `name` if the object is not one.
std::vector<nb::object> ParseItems(const char* name, const nb::object& sequence) {
  if (!nb::isinstance<nb::sequence>(sequence)) {
    throw nb::type_error(
        fmt::format("{}: {} must be a sequence, one item for each group", kGroupedVerb, name)
            .c_str());
  }
  std::vector<nb::object> items;
  for (const nb::handle item : sequence) items.push_back(nb::borrow<nb::object>(item));
  return items;
}

/// Returns the items of an argument that may be None. Errors: ValueError unless one per group.
std::vector<nb::object> OptionalItems(const char* name, const nb::object& sequence,
                                      std::size_t groups) {
  if (sequence.is_none()) return {};
  std::vector<nb::object> items = ParseItems(name, sequence);
  if (items.size() == groups) return items;
  throw InvalidArgument(fmt::format("{}: {} must have one item for each of the {} groups, got {}",
                                    kGroupedVerb, name, groups, items.size()));
}

/// The operands of one side, viewed for the duration of the call.
struct OperandList {
  std::vector<TensorMemory> held;
  std::vector<ConstQuantizedView> views;

  OperandList(const char* name, const std::vector<nb::object>& tensors) {
    for (const nb::object& tensor : tensors) {
      held.push_back(ViewBuffers(kGroupedVerb, ParseTensor(kGroupedVerb, name, tensor)));
      views.push_back(held.back().view);
    }
  }
};

nb::list GroupedQgemmArrays(const nb::object& a, const nb::object& b, const nb::object& bias,
                            const nb::object& out, bool accumulate, std::string_view layout,
                            const nb::object& dtype, std::optional<std::string_view> mode,
                            const nb::kwargs& kwargs) {
  const Execution execution = ParseExecution(kGroupedVerb, kwargs);
  GroupedGemmOptions options{.layout = FindGemmLayout(layout)};
  if (mode) options.mode = FindGemmMode(*mode);
  const DType wanted = ParseFloatDType(kGroupedVerb, dtype);
  if (accumulate && out.is_none()) {
    throw InvalidArgument("grouped_qgemm: accumulate=True needs out, got None");
  }
  if (accumulate) options.output = GemmOutput::kAccumulate;
  const OperandList a_side("a", ParseItems("a", a));
  const std::size_t groups = a_side.views.size();
  const OperandList b_side("b", OptionalItems("b", b, groups));
  std::vector<ArrayView> held_biases, held_outs;
  std::vector<ConstTensorView> biases;
  for (const nb::object& item : OptionalItems("bias", bias, groups)) {
    held_biases.push_back(ViewInput(kGroupedVerb, item, "bias"));
    biases.push_back(held_biases.back().Input());
  }
  options.biases = biases;
  const std::vector<nb::object> given = OptionalItems("out", out, groups);
  nb::list results;
  std::vector<TensorView> outs;
  for (std::size_t g = 0; g < groups; ++g) {
    const Shape shape = QgemmShape(a_side.views[g], b_side.views[g], options.layout,
                                   fmt::format("{}: group {}", kGroupedVerb, g));
    results.append(out.is_none() ? NewArray(wanted, shape) : given[g]);
    held_outs.push_back(ViewOutput(kGroupedVerb, results[g], wanted, shape));
    outs.push_back(held_outs.back().view);
  }
  const nb::gil_scoped_release unlocked;
  GroupedQgemm(a_side.views, b_side.views, outs, options, execution);
  return results;
}

/// Returns the name of a mode; for None, the name of the default mode.
std::string_view ProductMode(std::optional<std::string_view> name) {
  return GemmModeName(name ? FindGemmMode(*name) : DefaultGemmMode());
}

/// Returns the expanded items of `a` and `b`, their orientations and the product's factor, or None.
nb::object ExpandProduct(const nb::object& a, const nb::object& b, std::string_view layout,
                         int threads) {
  const GemmLayout gemm_layout = FindGemmLayout(layout);
  const TensorMemory held_a = ViewBuffers(kVerb, ParseTensor(kVerb, "a", a));
  const TensorMemory held_b = ViewBuffers(kVerb, ParseTensor(kVerb, "b", b));
  std::optional<ProductExpansion> plan;
  {
    const nb::gil_scoped_release unlocked;
    plan = PlanQgemmExpansion(held_a.view, held_b.view, gemm_layout);
  }
  const std::optional<double> factor = plan ? plan->NormalFactor() : std::nullopt;
  if (!factor) return nb::none();
  nb::list arrays;
  for (const OperandExpansion* operand : {&plan->a, &plan->b}) {
    const Shape shape{static_cast<std::int64_t>(operand->shape.rows),
                      static_cast<std::int64_t>(operand->shape.cols)};
    arrays.append(NewArray(DType::kBFloat16, shape));
    const ArrayView held = ViewOutput(kVerb, arrays[arrays.size() - 1], DType::kBFloat16, shape);
    const nb::gil_scoped_release unlocked;
    Expand(*operand, held.view.data, {.threads = threads});
  }
  return nb::make_tuple(arrays[0], arrays[1], plan->a.rows_are_lines, plan->b.rows_are_lines,
                        *factor);
}

}  // namespace

void RegisterQgemm(nb::module_& module) {
  module.def("qgemm", &QgemmArrays, nb::arg("a").none(), nb::arg("b").none(), nb::kw_only(),
             nb::arg("bias").noconvert() = nb::none(), nb::arg("out").noconvert() = nb::none(),
             nb::arg("accumulate") = false, nb::arg("layout") = "TN",
             nb::arg("dtype") = DTypeObject(DType::kFloat32), nb::arg("mode") = nb::none(),
             nb::arg("gelu") = false, nb::arg("gelu_in").noconvert() = nb::none(),
             nb::arg("grad") = false, nb::arg("options"), nb::sig(kQgemmSignature), kQgemmDoc);
  module.def("grouped_qgemm", &GroupedQgemmArrays, nb::arg("a"), nb::arg("b"), nb::kw_only(),
             nb::arg("bias") = nb::none(), nb::arg("out") = nb::none(),
             nb::arg("accumulate") = false, nb::arg("layout") = "TN",
             nb::arg("dtype") = DTypeObject(DType::kFloat32), nb::arg("mode") = nb::none(),
             nb::arg("options"), nb::sig(kGroupedQgemmSignature), kGroupedQgemmDoc);
  module.def("product_mode", &ProductMode, nb::arg("name") = nb::none(),
             nb::sig("def product_mode(name: str | None = None) -> str"), kProductModeDoc);
  module.def("has_bfloat16_products", &HasBFloat16Products,
             "Returns whether this machine has instructions for dot products of bfloat16.");
  module.def("expand_product", &ExpandProduct, nb::arg("a"), nb::arg("b"), nb::arg("layout"),
             nb::arg("threads") = 0, nb::sig(kExpandProductSignature), kExpandProductDoc);
}

}  // namespace narrowfloat::python
