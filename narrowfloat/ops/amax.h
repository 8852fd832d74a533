// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Returns the largest magnitude of a tensor in CPU memory; 0 for an empty one. Ignores NaN; counts
/// infinity. Errors: InvalidArgument if `in` is not a tensor of floats with adjacent items in a
/// row, or is on another device.
float Amax(const ConstTensorView& in, const Execution& execution = {});

/// Writes the largest magnitude to `amax`, float32 of shape [1], on the device of `in`. Errors:
/// InvalidArgument as above, or if `amax` is not as described or overlaps `in`.
void Amax(const ConstTensorView& in, const TensorView& amax, const Execution& execution = {});

}  // namespace narrowfloat
