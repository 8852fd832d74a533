// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/delayed_scale.h"

#include <fmt/format.h>

#include <cmath>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "update_delayed_scale";

void CheckFloats(const char* name, const ConstTensorView& view, const Shape& shape) {
  if (view.dtype != DType::kFloat32 || view.shape != shape) {
    throw InvalidArgument(fmt::format("{}: {} must be float32 of shape {}, got {} of shape {}",
                                      kVerb, name, ShapeText(shape), DTypeName(view.dtype),
                                      ShapeText(view.shape)));
  }
  if (!IsContiguous(view)) {
    throw InvalidArgument(fmt::format("{}: {} must be C-contiguous", kVerb, name));
  }
  if (view.data == nullptr && FlattenShape(shape).Size() > 0) {
    throw InvalidArgument(
        fmt::format("{}: {} must have data for its elements, got a null pointer", kVerb, name));
  }
}

}  // namespace

float ScaledMax(const char* verb, float fp8_max, float margin) {
  const FloatEnvironment environment;
  if (!(fp8_max > 0.0f) || std::isinf(fp8_max)) {
    throw InvalidArgument(
        fmt::format("{}: fp8_max must be positive and finite, got {}", verb, fp8_max));
  }
  if (!std::isfinite(margin)) {
    throw InvalidArgument(fmt::format("{}: margin must be finite, got {}", verb, margin));
  }
  return fp8_max * std::pow(2.0f, -margin);
}

AmaxAlgorithm FindAmaxAlgorithm(std::string_view name) {
  if (name == "max") return AmaxAlgorithm::kMax;
  if (name == "most_recent") return AmaxAlgorithm::kMostRecent;
  throw InvalidArgument(
      fmt::format("{}: algo must be 'max' or 'most_recent', got '{}'", kVerb, name));
}

void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                        const DelayedScaleRule& rule, const ConstTensorView* reduced_amax,
                        const Execution& execution) {
  ScaledMax(kVerb, rule.fp8_max, rule.margin);
  if (amax_history.shape.size() != 2 || amax_history.shape[0] < 1) {
    throw InvalidArgument(
        fmt::format("{}: amax_history must have shape (rows, scales) with at least one row, got {}",
                    kVerb, ShapeText(amax_history.shape)));
  }
  const Shape per_scale{amax_history.shape[1]};
  CheckFloats("amax_history", amax_history, amax_history.shape);
  CheckFloats("scale", scale, per_scale);
  CallTensors call(kVerb);
  call.Write({"amax_history"}, amax_history);
  call.Write({"scale"}, scale);
  if (reduced_amax != nullptr) {
    CheckFloats("reduced_amax", *reduced_amax, per_scale);
    call.Read({"reduced_amax"}, *reduced_amax);
  }
  call.Check().UpdateDelayedScale(amax_history, scale, rule, reduced_amax, execution);
}

}  // namespace narrowfloat
