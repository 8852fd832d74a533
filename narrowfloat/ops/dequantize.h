// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Writes the values of `in` to `out`: code times scale_inv in fp32, then rounded to out.dtype
/// (nearest-even, overflow to infinity). Reads the rowwise buffers if they are present, else the
/// columnwise ones, and NVFP4's amax; not `scale`. Shapes: out.shape is in.shape; rows of out may
/// have any stride under which they do not overlap. Errors: InvalidArgument if no direction is
/// complete, a buffer differs from the plan, or out is not a float tensor of that shape or overlaps
/// a buffer.
void Dequantize(const ConstQuantizedView& in, const TensorView& out,
                const Execution& execution = {});

/// Writes the values that quantizing by `spec` and then dequantizing would give, of the rowwise
/// direction if the spec has it. Keeps codes and scales in temporary memory. Shapes: out.shape is
/// in.shape; rows may have strides as Dequantize's. Errors: InvalidArgument as Quantize; if out is
/// not a float tensor of that shape, or overlaps `in` without being it.
void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                  const Execution& execution = {});

}  // namespace narrowfloat
