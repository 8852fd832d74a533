// SPDX-License-Identifier: Apache-2.0
// Functions for all backends: they convert the views of a call to the arguments of kernels.
#pragma once

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Returns codes and scales of one direction of `view`, as kernel arguments.
template <class Byte>
DirectionBuffers<Byte> BuffersOf(const BasicQuantizedView<Byte>& view, Direction direction) {
  const SchemeInfo& scheme = *view.spec.scheme;
  const MatrixShape matrix = FlattenShape(view.shape);
  const bool transposed =
      direction == Direction::kColumnwise && scheme.layout.columnwise_transposed;
  DirectionBuffers<Byte> buffers;
  buffers.codes = view[DataRole(direction)].data;
  buffers.code_stride = CodeBytes(scheme, transposed ? matrix.rows : matrix.cols);
  buffers.scale_inv = view[ScaleInvRole(direction)].data;
  buffers.strides =
      MakeScaleStrides(MakeScaleGrid(scheme, direction, matrix),
                       view.spec.swizzled ? ScalePlacement::kSwizzled : ScalePlacement::kCompact);
  if (view.spec.row_scaled) buffers.line_amaxes = view[AmaxRole(direction)].data;
  return buffers;
}

/// Returns the inputs of a scheme's Prepare for a spec and a tensor of `dtype`.
inline ScaleOptions ScaleOptionsOf(const QuantSpec& spec, DType dtype) {
  ScaleOptions options;
  options.has_scale = spec.scale.has_value();
  options.scale = spec.scale.value_or(1.0f);
  options.rule.amax_epsilon = spec.amax_epsilon;
  options.rule.force_pow_2_scales = spec.ForcesPow2Scales();
  options.input_max = LargestFinite(dtype);
  options.e4m3_max = spec.e4m3_max;
  options.four_over_six = spec.four_over_six;
  options.four_over_six_fast_error = spec.four_over_six_fast_error;
  return options;
}

/// Returns the numbers of lines and blocks of scales that a swizzle or an unswizzle copies:
/// TransformerEngine's swizzle zeroes the padding, and its unswizzle copies it.
inline MatrixShape KeptScales(const ScaleGrid& grid, const QuantSpec& of_output) {
  if (of_output.swizzled) return {grid.lines, grid.blocks};
  return {grid.padded_lines, grid.padded_blocks};
}

}  // namespace narrowfloat
