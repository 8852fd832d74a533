// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Whether the columnwise codes and scales of a scheme are the rowwise ones, transposed: one scale
/// for the whole tensor, or square tiles whose columnwise codes lie transposed.
bool DerivesColumnwise(const SchemeInfo& scheme);

/// Writes the columnwise codes and scale_inv of `out` from the rowwise ones of `in`.
/// Shapes: the buffers are those of the plan; in.shape is out.shape. Padding of the scales becomes
/// zero. One scale of the whole tensor is left alone: both directions share it.
/// Errors: InvalidArgument if the scheme does not derive, scales are swizzled or a buffer differs
/// from the plan.
void DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                      const Execution& execution = {});

}  // namespace narrowfloat
