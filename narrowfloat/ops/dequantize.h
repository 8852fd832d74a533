// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Writes the values of `in` to `out`: code times scale_inv in fp32, then rounded to out.dtype
/// (nearest-even, overflow to infinity). Reads the rowwise buffers if they are present, else the
/// columnwise ones, and NVFP4's amax; does not read `scale`. Shapes: out.shape is in.shape; rows of
/// out may have any stride if they do not overlap. Errors: InvalidArgument if no direction is
/// complete, a buffer differs from the plan, or out is not a float tensor of that shape or overlaps
/// a buffer that is read.
void Dequantize(const ConstQuantizedView& in, const TensorView& out,
                const Execution& execution = {});

/// Quantizes `in` by `spec` and writes the dequantized values to `out`: the rowwise direction's if
/// the spec has it, else the columnwise one's. Codes and scales are temporary. Shapes: out.shape is
/// in.shape; rows may have strides as Dequantize's. Errors: InvalidArgument as Quantize; if out is
/// not a float tensor of that shape, or overlaps `in` without being the same tensor.
void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                  const Execution& execution = {});

}  // namespace narrowfloat
