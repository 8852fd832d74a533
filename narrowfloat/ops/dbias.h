// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantizes as Quantize does, and writes the sum of each column of the flattened input to `dbias`.
/// On the CPU, a pass over the input that quantization needs also computes the sums.
/// Shapes: dbias is [K], in the input's type. Sums are fp32 in an order that depends on the shape
/// alone: strips of rows, each added in order, then the strips in order; rounded once. With a
/// workspace of DbiasWorkspaceShape, threads may share columns. With a smaller or empty one, each
/// thread sums columns of its own; the bytes are the same. The workspace is on the device of `in`;
/// its content afterwards is unspecified. Without the argument it is allocated.
/// Errors: as Quantize; InvalidArgument if dbias is not as described, or if dbias or the workspace
/// overlaps another buffer.
void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution = {});
void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   std::span<float> workspace, const Execution& execution = {});

/// Writes the sum of each column of the flattened input to `sums`, float32 of shape [K]: the sums
/// of QuantizeDbias before they are rounded to the input's type. Errors: InvalidArgument if `in` is
/// not a tensor of floats with adjacent items in a row, or if `sums` has another shape or type or
/// overlaps it.
void ColumnSums(const ConstTensorView& in, const TensorView& sums, const Execution& execution = {});

/// Rows of a strip.
inline constexpr std::size_t kDbiasStripRows = 128;

/// Returns the shape of the workspace of a tensor of `shape`, in fp32: strips of rows by columns.
Shape DbiasWorkspaceShape(const Shape& shape);

}  // namespace narrowfloat
