// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/delayed_scale.h"

#include <cstring>

#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

/// Accesses items of a buffer that need not be aligned.
float Load(const std::byte* data, std::size_t item) {
  float value;
  std::memcpy(&value, data + item * sizeof value, sizeof value);
  return value;
}
void Store(std::byte* data, std::size_t item, float value) {
  std::memcpy(data + item * sizeof value, &value, sizeof value);
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

void CpuBackend::UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                                    const DelayedScaleRule& rule,
                                    const ConstTensorView* reduced_amax,
                                    const Execution& /*execution*/) const {
  const FloatEnvironment environment;  // comparisons and powf also depend on the caller's settings
  const float scaled_max = ScaledMax("update_delayed_scale", rule.fp8_max, rule.margin);
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
