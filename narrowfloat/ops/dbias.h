// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantize, and the sum of each column of the flattened input in `dbias`.
/// Shapes: dbias is [K], in the input's type. Sums are fp32 in an order that depends on the shape
/// alone: strips of rows, each added in order, then the strips in order. Errors: as Quantize;
/// InvalidArgument if dbias differs from that.
void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution = {});

}  // namespace narrowfloat
