// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantize, and the sum of each column of the flattened input in `dbias`, in one read of it beside
/// the one for an amax.
/// Shapes: dbias is [K], in the input's type. Sums are fp32 in an order that depends on the shape
/// alone: strips of rows, each added in order, then the strips in order; rounded once. A workspace
/// as DbiasWorkspaceShape asks for lets threads share columns; with a smaller one, none included,
/// each thread has columns of its own, and the bytes are the same. What it holds afterwards is of
/// no use. Without the argument it is allocated. Errors: as Quantize; InvalidArgument if dbias
/// differs from that, or if dbias or the workspace overlap another buffer.
void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution = {});
void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   std::span<float> workspace, const Execution& execution = {});

/// Writes the sum of each column of the flattened input to `sums`, float32 of shape [K]: the sums
/// of QuantizeDbias before they are rounded to the input's type. Errors: InvalidArgument if `in` is
/// not a tensor of floats with adjacent items in a row, or if `sums` has another shape or type or
/// overlaps it.
void ColumnSums(const ConstTensorView& in, const TensorView& sums, const Execution& execution = {});

/// Workspace for the sums of a tensor of `shape`, in fp32: strips of rows by columns.
Shape DbiasWorkspaceShape(const Shape& shape);

}  // namespace narrowfloat
