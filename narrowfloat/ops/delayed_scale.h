// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Rule that reduces the history to the amax of the scale.
enum class AmaxAlgorithm : std::uint8_t { kMax, kMostRecent };

/// Returns the algorithm of that name, "max" or "most_recent". Errors: InvalidArgument.
AmaxAlgorithm FindAmaxAlgorithm(std::string_view name);

/// Returns fp8_max * 2^-margin, the product of scale and amax. `verb` begins the message.
/// Errors: InvalidArgument if fp8_max is not positive and finite, or margin is not finite.
float ScaledMax(const char* verb, float fp8_max, float margin);

struct DelayedScaleRule {
  float fp8_max;        // largest value of the codes' format
  float margin = 0.0f;  // exponent, as in ScaledMax
  AmaxAlgorithm algorithm = AmaxAlgorithm::kMax;
};

/// Updates delayed scaling by the newest amaxes: rolls `amax_history` and sets `scale`, in place.
/// Shapes: amax_history is [L, n], row 0 the newest; scale and reduced_amax are [n]; all float32
/// and C-contiguous. A nonzero reduced_amax, the newest amax over all processes, replaces row 0's;
/// it may be null. A column with a newest amax of 0 (not NaN) keeps history and scale, except that
/// an infinite scale becomes the largest float. Otherwise computes the scale from the amax that
/// rule.algorithm selects, drops row 1, moves the later rows up by one, and stores the newest amax
/// in the last row and 0 in row 0.
/// Errors: InvalidArgument if a buffer is not as described or overlaps another, fp8_max is not
/// positive and finite, or margin is not finite. Nothing is written then.
/// Source: TransformerEngine nvte_delayed_scaling_recipe_amax_and_scale_update_after_reduction.
void UpdateDelayedScale(const TensorView& amax_history, const TensorView& scale,
                        const DelayedScaleRule& rule, const ConstTensorView* reduced_amax = nullptr,
                        const Execution& execution = {});

}  // namespace narrowfloat
