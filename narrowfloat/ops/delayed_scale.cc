// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/delayed_scale.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "narrowfloat/numerics/delayed_scale.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/input.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "update_delayed_scale";

/// Accesses items of a buffer that need not be aligned.
float Load(const std::byte* data, std::size_t item) {
  float value;
  std::memcpy(&value, data + item * sizeof value, sizeof value);
  return value;
}
void Store(std::byte* data, std::size_t item, float value) {
  std::memcpy(data + item * sizeof value, &value, sizeof value);
}

void CheckRule(const DelayedScaleRule& rule) {
  if (!(rule.fp8_max > 0.0f) || std::isinf(rule.fp8_max)) {
    throw InvalidArgument(
        fmt::format("{}: fp8_max must be positive and finite, got {}", kVerb, rule.fp8_max));
  }
  if (!std::isfinite(rule.margin)) {
    throw InvalidArgument(fmt::format("{}: margin must be finite, got {}", kVerb, rule.margin));
  }
}

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
    throw InvalidArgument(fmt::format("{}: {} has elements but no data", kVerb, name));
  }
  if (view.device != Device::kCpu) {
    throw Unsupported(
        fmt::format("{}: {} lies on a device this build has no kernels for", kVerb, name));
  }
}

void CheckDisjoint(const char* a_name, const ConstTensorView& a, const char* b_name,
                   const ConstTensorView& b) {
  if (!ExtentOf(a).Overlaps(ExtentOf(b))) return;
  throw InvalidArgument(fmt::format("{}: {} and {} must not overlap", kVerb, a_name, b_name));
}

void CheckBuffers(const TensorView& amax_history, const TensorView& scale,
                  const ConstTensorView* reduced_amax) {
  if (amax_history.shape.size() != 2 || amax_history.shape[0] < 1) {
    throw InvalidArgument(
        fmt::format("{}: amax_history must have shape (rows, scales) with at least one row, got {}",
                    kVerb, ShapeText(amax_history.shape)));
  }
  const Shape per_scale{amax_history.shape[1]};
  CheckFloats("amax_history", amax_history, amax_history.shape);
  CheckFloats("scale", scale, per_scale);
  CheckDisjoint("amax_history", amax_history, "scale", scale);
  if (reduced_amax == nullptr) return;
  CheckFloats("reduced_amax", *reduced_amax, per_scale);
  CheckDisjoint("amax_history", amax_history, "reduced_amax", *reduced_amax);
  CheckDisjoint("scale", scale, "reduced_amax", *reduced_amax);
}

/// Returns the largest amax of the column, with `newest` instead of row 0, and rolls the
/// column.
float MeasureAndRoll(std::byte* history, MatrixShape shape, std::size_t column, float newest) {
  float amax = LargerAmax(0.0f, newest);
  for (std::size_t row = 1; row < shape.rows; ++row) {
    const float older = Load(history, row * shape.cols + column);
    amax = LargerAmax(amax, older);
    if (row > 1) Store(history, (row - 1) * shape.cols + column, older);
  }
  Store(history, (shape.rows - 1) * shape.cols + column, newest);
  Store(history, column, 0.0f);  // the same item, if there is one row
  return amax;
}

}  // namespace

AmaxAlgorithm FindAmaxAlgorithm(std::string_view name) {
  if (name == "max") return AmaxAlgorithm::kMax;
  if (name == "most_recent") return AmaxAlgorithm::kMostRecent;
  throw InvalidArgument(
      fmt::format("{}: algo must be 'max' or 'most_recent', got '{}'", kVerb, name));
}

void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                        const DelayedScaleRule& rule, const ConstTensorView* reduced_amax) {
  const FloatEnvironment environment;  // comparisons and powf also depend on the caller's settings
  CheckRule(rule);
  CheckBuffers(amax_history, scale, reduced_amax);
  const MatrixShape shape = FlattenShape(amax_history.shape);
  const float scaled_max = rule.fp8_max * std::pow(2.0f, -rule.margin);
  for (std::size_t column = 0; column < shape.cols; ++column) {
    const float reduced = reduced_amax != nullptr ? Load(reduced_amax->data, column) : 0.0f;
    const float newest = reduced != 0.0f ? reduced : Load(amax_history.data, column);
    const bool rolls = newest != 0.0f;
    const float amax = rolls ? MeasureAndRoll(amax_history.data, shape, column, newest) : 0.0f;
    const float used = rule.algorithm == AmaxAlgorithm::kMostRecent ? newest : amax;
    Store(scale.data, column, DelayedScale(used, scaled_max, Load(scale.data, column)));
  }
}

}  // namespace narrowfloat
