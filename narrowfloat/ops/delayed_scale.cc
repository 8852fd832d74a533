// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/delayed_scale.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "narrowfloat/numerics/delayed_scale.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/strided_rows.h"
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
  if (view.device != Device::kCpu) {
    throw Unsupported(
        fmt::format("{}: {} must be in CPU memory, got memory of another device", kVerb, name));
  }
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
  const Extent history = ExtentOf(amax_history), scales = ExtentOf(scale);
  CheckDisjoint(kVerb, "amax_history", history, "scale", scales);
  if (reduced_amax == nullptr) return;
  CheckFloats("reduced_amax", *reduced_amax, per_scale);
  const Extent reduced = ExtentOf(*reduced_amax);
  CheckDisjoint(kVerb, "amax_history", history, "reduced_amax", reduced);
  CheckDisjoint(kVerb, "scale", scales, "reduced_amax", reduced);
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

float ScaledMax(const char* verb, float fp8_max, float margin) {
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
                        const DelayedScaleRule& rule, const ConstTensorView* reduced_amax) {
  const FloatEnvironment environment;  // comparisons and powf also depend on the caller's settings
  const float scaled_max = ScaledMax(kVerb, rule.fp8_max, rule.margin);
  CheckBuffers(amax_history, scale, reduced_amax);
  const MatrixShape shape = FlattenShape(amax_history.shape);
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
