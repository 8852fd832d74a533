// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Returns true if a scheme's columnwise codes and scales are the rowwise ones, transposed: it has
/// one scale for the whole tensor, or square tiles with transposed columnwise codes.
bool DerivesColumnwise(const SchemeInfo& scheme);

/// Writes the columnwise codes and scale_inv of `out` from the rowwise ones of `in`.
/// Shapes: the buffers are those of the plan; in.shape is out.shape. Padding of the scales becomes
/// zero. Does not write a scale of the whole tensor, which both directions share, nor
/// amax_columnwise: the amax of the derived columns is amax_rowwise.
/// Errors: InvalidArgument if DerivesColumnwise is false for the scheme, scales are swizzled, `out`
/// has another scheme or shape, a buffer differs from the plan, or the output overlaps the input.
void DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                      const Execution& execution = {});

/// Transposes codes of one byte. Shapes: `in` is [rows, cols], `out` [cols, rows], uint8, both
/// contiguous. Errors: InvalidArgument if the tensors are not as described or overlap.
void TransposeCodes(const ConstTensorView& in, const TensorView& out,
                    const Execution& execution = {});

}  // namespace narrowfloat
