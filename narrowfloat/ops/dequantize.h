// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Writes the values of `in` to `out`: code times scale_inv in fp32, then rounded to out.dtype
/// (nearest-even, overflow to infinity). Reads the rowwise buffers if they are present, else the
/// columnwise ones, and NVFP4's amax; not `scale`. Shapes: out.shape is in.shape; rows of out may
/// have any stride. Errors: InvalidArgument if no direction is complete, a buffer differs from the
/// plan, or out is not a float tensor.
void Dequantize(const ConstQuantizedView& in, const TensorView& out,
                const Execution& execution = {});

/// Quantizes by `spec` and dequantizes into a tensor of the same shape, without storing the
/// codes. `out` must be `in` itself or must not overlap it.
void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                  const Execution& execution = {});

}  // namespace narrowfloat
