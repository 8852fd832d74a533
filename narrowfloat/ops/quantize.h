// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Fills `out` with the codes, scales and amaxes of `in`, quantized by `out.spec`.
/// Shapes: out.shape is in.shape; the buffers are those of PlanQuantize(out.spec, out.shape),
/// C-contiguous. Padding of the scales becomes zero. A short last block is quantized as if padded
/// with zeros. Errors: InvalidArgument if out.spec is invalid or for dequantization only, `in` is
/// not a float tensor with adjacent items in a row, or a buffer is missing, differs from the plan,
/// or overlaps the input or another buffer.
void Quantize(const ConstTensorView& in, const QuantizedView& out, const Execution& execution = {});

/// Checks that `view` has the buffers of its plan, each with the planned type and shape,
/// C-contiguous, and none overlapping another. Errors: InvalidArgument naming the first buffer that
/// differs; `verb` begins the message.
template <class Byte>
void CheckBuffers(const char* verb, const BasicQuantizedView<Byte>& view);

/// Returns views of the planned buffers; `bytes_of(plan entry)` gives the memory of each, on
/// `device`.
template <class View, class BytesOf>
View BindBuffers(const QuantSpec& spec, const Shape& shape, BytesOf&& bytes_of,
                 Device device = {}) {
  View view{spec, shape, {}};
  for (const BufferPlan& buffer : PlanQuantize(spec, shape)) {
    view[buffer.role] = {bytes_of(buffer), buffer.dtype, buffer.shape, {}, device};
  }
  return view;
}

}  // namespace narrowfloat
