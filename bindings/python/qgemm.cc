// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/qgemm.h"

#include <nanobind/stl/string_view.h>

#include "bindings/python/array.h"
#include "bindings/python/docs.h"
#include "bindings/python/options.h"
#include "bindings/python/quantized_tensor.h"
#include "bindings/python/verbs.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::python {
namespace {

constexpr const char* kVerb = "qgemm";

nb::object QgemmArrays(const nb::object& a, const nb::object& b, const nb::object& bias,
                       const nb::object& out, bool accumulate, std::string_view layout,
                       const nb::object& dtype, const nb::kwargs& kwargs) {
  const Execution execution = ParseExecution(kVerb, kwargs);
  GemmOptions options{.layout = FindGemmLayout(layout)};
  const DType wanted = ParseFloatDType(kVerb, dtype);
  if (accumulate && out.is_none()) {
    throw InvalidArgument("qgemm: accumulate=True adds to out, which is not given");
  }
  if (accumulate) options.output = GemmOutput::kAccumulate;
  const HeldTensor held_a = Hold(kVerb, TensorOf(kVerb, "a", a));
  const HeldTensor held_b = Hold(kVerb, TensorOf(kVerb, "b", b));
  const HeldArray held_bias = bias.is_none() ? HeldArray{} : HoldInput(kVerb, bias, "bias");
  if (!bias.is_none()) options.bias = held_bias.Input();
  const Shape shape = QgemmShape(held_a.view, held_b.view, options.layout);
  nb::object result = out.is_none() ? NewArray(wanted, shape) : out;
  const HeldArray held_out = HoldOutput(kVerb, result, wanted, shape);
  const nb::gil_scoped_release unlocked;
  Qgemm(held_a.view, held_b.view, held_out.view, options, execution);
  return result;
}

}  // namespace

void RegisterQgemm(nb::module_& module) {
  module.def("qgemm", &QgemmArrays, nb::arg("a").none(), nb::arg("b").none(), nb::kw_only(),
             nb::arg("bias").noconvert() = nb::none(), nb::arg("out").noconvert() = nb::none(),
             nb::arg("accumulate") = false, nb::arg("layout") = "TN",
             nb::arg("dtype") = DTypeObject(DType::kFloat32), nb::arg("options"),
             nb::sig(kQgemmSignature), kQgemmDoc);
}

}  // namespace narrowfloat::python
