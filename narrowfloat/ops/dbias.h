// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/shape.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Quantize, and the sum of each column of the flattened input in `dbias`.
/// Shapes: dbias is [K], in the input's type. Sums are fp32 in an order that depends on the shape
/// alone: strips of rows, each added in order, then the strips in order. Errors: as Quantize;
/// InvalidArgument if dbias differs from that.
void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   const Execution& execution = {});

/// The fp32 sums that a call keeps until the last strip is done: strips x columns.
MatrixShape DbiasWorkspaceShape(MatrixShape matrix);

/// QuantizeDbias with memory for DbiasWorkspaceShape(flattened in.shape) sums, or less: then each
/// thread owns columns from top to bottom. The bytes are the same, and it allocates no sums.
void QuantizeDbias(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                   std::span<float> workspace, const Execution& execution = {});

}  // namespace narrowfloat
