// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Returns codes and scales of one direction of `view`, in the form that kernels take.
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

/// A tile's rows and columns are multiples of these, so that tiles begin on block boundaries.
inline constexpr std::size_t kRowRun = 64;
constexpr std::size_t RowUnit(const SchemeInfo& scheme, Direction direction) {
  if (direction == Direction::kRowwise) return scheme.block.rows > 1 ? scheme.block.rows : 1;
  return scheme.layout.columnwise_transposed ? kTransposedRun : scheme.block.cols;
}
constexpr std::size_t ColUnit(const SchemeInfo& scheme) {
  return scheme.block.cols > kRowRun ? scheme.block.cols : kRowRun;
}

/// Does HeadOf for the codes of one direction.
template <class Byte>
std::size_t CodesHead(const DirectionBuffers<Byte>& of, const SchemeInfo& scheme,
                      std::size_t unit) {
  return HeadOf(of.codes, static_cast<std::ptrdiff_t>(of.code_stride),
                static_cast<std::size_t>(scheme.element_bits), unit);
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

}  // namespace narrowfloat
