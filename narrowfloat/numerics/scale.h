// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/host_device.h"

namespace narrowfloat {

/// Options of computing an fp32 scale from an amax.
struct ScaleRule {
  float amax_epsilon = 0.0f;             // smallest amax that the scale is computed from
  bool force_pow_2_scales = false;       // round the scale down to a power of two
  float overflow_scale = kLargestFloat;  // used where max / amax overflows
};

/// Returns the scale that maps `amax` to `max_value`.
/// Special values: an amax of 0, infinity or NaN gives 1, with power-of-two scales too; epsilon is
/// applied first. Source: TransformerEngine common/recipe/recipe_common.cuh,
/// compute_scale_from_amax.
NF_HD constexpr float ScaleFromAmax(float amax, float max_value, const ScaleRule& rule) noexcept {
  if (amax < rule.amax_epsilon) amax = rule.amax_epsilon;  // false for NaN, which is kept
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  if (bits == 0 || bits >= kFloatInfinity) return 1.0f;  // also for negative values
  float scale = max_value / amax;
  if (std::bit_cast<std::uint32_t>(scale) == kFloatInfinity) scale = rule.overflow_scale;
  if (rule.force_pow_2_scales)
    scale = std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) & kFloatInfinity);
  return scale;
}

}  // namespace narrowfloat
