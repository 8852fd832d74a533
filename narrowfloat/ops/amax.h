// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Largest magnitude of `in`. NaN elements are ignored; an empty or all-NaN tensor has 0; infinity
/// counts. Errors: InvalidArgument if `in` is not a float tensor.
float Amax(const ConstTensorView& in, const Execution& execution = {});

}  // namespace narrowfloat
