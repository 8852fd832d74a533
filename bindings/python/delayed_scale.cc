// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/delayed_scale.h"

#include <nanobind/stl/string_view.h>

#include "bindings/python/array.h"
#include "bindings/python/docs.h"
#include "bindings/python/options.h"
#include "bindings/python/verbs.h"

namespace narrowfloat::python {
namespace {

constexpr const char* kVerb = "update_delayed_scale";

/// Returns a new C-contiguous copy of `object`. Errors: TypeError if it is not a float32
/// array.
nb::object CopyArray(const char* name, const nb::object& object) {
  const ArrayView source = ViewArrayOf(DType::kFloat32, kVerb, name, object);
  nb::object copy = NewArray(DType::kFloat32, source.view.shape);
  copy[nb::ellipsis()] = AsNumPyArray({kVerb, name, DTypeName(DType::kFloat32)}, object);
  return copy;
}

nb::tuple UpdateDelayedScaleArrays(const nb::object& amax_history, const nb::object& scale,
                                   const nb::object& fp8_max, const nb::object& margin,
                                   std::string_view algo, const nb::object& reduced_amax) {
  const nb::object history = CopyArray("amax_history", amax_history),
                   scales = CopyArray("scale", scale);
  const bool reduces = !reduced_amax.is_none();
  const nb::object reduced = reduces ? CopyArray("reduced_amax", reduced_amax) : nb::none();
  const DelayedScaleRule rule{ParseFloat(kVerb, "fp8_max", fp8_max),
                              ParseFloat(kVerb, "margin", margin), FindAmaxAlgorithm(algo)};
  const ArrayView held_history = ViewArrayOf(DType::kFloat32, kVerb, "amax_history", history);
  const ArrayView held_scales = ViewArrayOf(DType::kFloat32, kVerb, "scale", scales);
  const ArrayView held_reduced =
      reduces ? ViewArrayOf(DType::kFloat32, kVerb, "reduced_amax", reduced) : ArrayView{};
  const ConstTensorView reduced_view = held_reduced.Input();
  UpdateDelayedScale(held_history.view, held_scales.view, rule, reduces ? &reduced_view : nullptr);
  return nb::make_tuple(history, scales);
}

}  // namespace

void RegisterDelayedScale(nb::module_& module) {
  module.def("update_delayed_scale", &UpdateDelayedScaleArrays,
             nb::arg("amax_history").noconvert().none(), nb::arg("scale").noconvert().none(),
             nb::arg("fp8_max").none(), nb::arg("margin").none() = 0, nb::arg("algo") = "max",
             nb::arg("reduced_amax").noconvert() = nb::none(),
             nb::sig(kUpdateDelayedScaleSignature), kUpdateDelayedScaleDoc);
}

}  // namespace narrowfloat::python
