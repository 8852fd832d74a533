// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace narrowfloat {

/// OCP FP8 E5M2: S.EEEEE.MM, bias 15, infinity 0x7C, NaN 0x7D to 0x7F, largest 57344.
/// TransformerEngine encodes every NaN as 0x7F. Source: OCP 8-bit floating point specification 1.0,
/// section 4.
struct E5M2 {
  static constexpr std::string_view kName = "e5m2", kDTypeName = "float8_e5m2";
  static constexpr int kExponentBits = 5, kMantissaBits = 2, kBias = 15;
  static constexpr std::uint32_t kMaxCode = 0x7B, kNanCode = 0x7F;
  static constexpr bool kHasInfinity = true;
};

}  // namespace narrowfloat
