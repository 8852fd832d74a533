// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/host_device.h"
#include "narrowfloat/numerics/scale.h"

namespace narrowfloat {

/// Returns the larger of two amaxes; if one is NaN, the other one, as CUDA's fmaxf does.
NF_HD constexpr float LargerAmax(float a, float b) noexcept {
  return a >= b || b != b ? a : b;
}

/// Returns the scale for the next step, scaled_max / amax, where `amax` summarizes the steps so far
/// and `scaled_max` is the format's largest value times 2^-margin.
/// Special values: an amax that is 0, negative, infinite or NaN keeps `old_scale`; an infinite
/// scale, old or new, becomes the largest float. There is no epsilon and no power-of-two rule.
/// Source: TransformerEngine common/recipe/delayed_scaling.cu, amax_and_scale_update_impl.
NF_HD constexpr float DelayedScale(float amax, float scaled_max, float old_scale) noexcept {
  const bool usable = amax > 0.0f && std::bit_cast<std::uint32_t>(amax) < kFloatInfinity;
  const float scale = usable ? scaled_max / amax : old_scale;
  const bool infinite = (std::bit_cast<std::uint32_t>(scale) & ~kFloatSign) == kFloatInfinity;
  return infinite ? kLargestFloat : scale;
}

}  // namespace narrowfloat
