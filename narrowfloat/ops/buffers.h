// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

constexpr Role DataRole(Direction direction) {
  return direction == Direction::kRowwise ? Role::kRowwiseData : Role::kColumnwiseData;
}
constexpr Role ScaleInvRole(Direction direction) {
  return direction == Direction::kRowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
}

/// Whether codes and scales of a direction are there.
bool HasDirection(const ConstQuantizedView& view, Direction direction);

/// Checks codes and scales of one direction as CheckBuffers does all of them.
void CheckDirection(const char* verb, const ConstQuantizedView& view, Direction direction);

/// Codes and scales of one direction of `view`, as kernels take them.
template <class Byte>
DirectionBuffers<Byte> BuffersOf(const BasicQuantizedView<Byte>& view, Direction direction) {
  const SchemeInfo& scheme = *view.spec.scheme;
  const MatrixShape matrix = FlattenShape(view.shape);
  const bool transposed =
      direction == Direction::kColumnwise && scheme.layout.columnwise_transposed;
  DirectionBuffers<Byte> buffers;
  buffers.codes = view[DataRole(direction)].data;
  buffers.code_stride = transposed ? matrix.rows : matrix.cols;
  buffers.scale_inv = view[ScaleInvRole(direction)].data;
  buffers.strides =
      MakeScaleStrides(MakeScaleGrid(scheme, direction, matrix),
                       view.spec.swizzled ? ScalePlacement::kSwizzled : ScalePlacement::kCompact);
  return buffers;
}

/// What a spec tells a scheme's Prepare.
inline ScaleOptions ScaleOptionsOf(const QuantSpec& spec) {
  ScaleOptions options;
  options.has_scale = spec.scale.has_value();
  options.scale = spec.scale.value_or(1.0f);
  options.rule.amax_epsilon = spec.amax_epsilon;
  options.rule.force_pow_2_scales = spec.force_pow_2_scales;
  return options;
}

}  // namespace narrowfloat
