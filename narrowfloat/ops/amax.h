// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Largest magnitude of a tensor; 0 if there is none. NaN is ignored, infinity counts.
/// Errors: InvalidArgument if `in` is not a tensor of floats with adjacent items in a row.
float Amax(const ConstTensorView& in, const Execution& execution = {});

/// Largest magnitudes of the flattened tensor's rows (kRowwise) or columns (kColumnwise), fp32, one
/// for each, to `amaxes`. Errors: as Amax.
void LineAmaxes(const ConstTensorView& in, Direction direction, std::byte* amaxes,
                const Execution& execution = {});

}  // namespace narrowfloat
