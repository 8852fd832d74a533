// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/numerics/scale.h"

namespace narrowfloat {

/// The options of schemes, as bits; each scheme lists its own in kOptions.
enum class Option : std::uint32_t {
  kScale = 1u << 0,
  kAmax = 1u << 1,
  kAmaxEpsilon = 1u << 2,
  kForcePow2Scales = 1u << 3,
  kSwizzled = 1u << 4,
  kHadamard = 1u << 5,
  kStochasticRounding = 1u << 6,
  kRowScaled = 1u << 7,
  kFourOverSix = 1u << 8,
  kAmaxColumnwise = 1u << 9,
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

/// Rule by which a block maps its amax to 4 or to 6 of E2M1: always to 6, or by the smaller error.
enum class FourOverSix : std::uint8_t { kOff, kMeanAbsoluteError, kMeanSquaredError };

/// The smaller of the two values that e4m3_max may have, for use with 4over6.
inline constexpr float kReducedE4M3Max = 256.0f;

/// Inputs of a scheme's Prepare besides the amax.
struct ScaleOptions {
  bool has_scale = false;  // delayed scaling: `scale` is given, not computed from the amax
  float scale = 1.0f;
  ScaleRule rule;
  float input_max = kLargestFloat;   // largest finite number of the input's type
  float e4m3_max = kMaxValue<E4M3>;  // largest block scale, from which the tensor's is computed
  FourOverSix four_over_six = FourOverSix::kOff;
  bool four_over_six_fast_error = false;
};

}  // namespace narrowfloat
