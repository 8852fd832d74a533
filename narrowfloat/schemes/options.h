// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "narrowfloat/numerics/scale.h"

namespace narrowfloat {

/// The options a scheme can take, as bits; each scheme lists its own in kOptions.
enum class Option : std::uint32_t {
  kScale = 1u << 0,
  kAmax = 1u << 1,
  kAmaxEpsilon = 1u << 2,
  kForcePow2Scales = 1u << 3,
  kSwizzled = 1u << 4,
};

struct OptionSet {
  std::uint32_t bits = 0;
  constexpr bool Has(Option option) const {
    return (bits & static_cast<std::uint32_t>(option)) != 0;
  }
};

constexpr OptionSet operator|(OptionSet set, Option option) {
  return {set.bits | static_cast<std::uint32_t>(option)};
}
constexpr OptionSet operator|(Option a, Option b) {
  return OptionSet{} | a | b;
}

/// What a scheme's Prepare is told beside the amax.
struct ScaleOptions {
  bool has_scale =
      false;  // delayed scaling: the multiplier is given and the amax does not decide it
  float scale = 1.0f;
  ScaleRule rule;
};

}  // namespace narrowfloat
