// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace narrowfloat {

/// OCP FP8 E4M3: S.EEEE.MMM, bias 7, no infinity, one NaN magnitude (0x7F), largest 448.
/// Source: OCP 8-bit floating point specification 1.0, section 4.
struct E4M3 {
  static constexpr std::string_view kName = "e4m3", kDTypeName = "float8_e4m3fn";
  static constexpr int kExponentBits = 4, kMantissaBits = 3, kBias = 7;
  static constexpr std::uint32_t kMaxCode = 0x7E, kNanCode = 0x7F;
  static constexpr bool kHasInfinity = false;
};

}  // namespace narrowfloat
