// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace narrowfloat {

/// OCP FP4 E2M1: S.EE.M, bias 1, neither infinity nor NaN, largest 6; NaN is encoded as +6.
/// Source: OCP MX 1.0, section 5.3.3.
struct E2M1 {
  static constexpr std::string_view kName = "e2m1", kDTypeName = "float4_e2m1fn";
  static constexpr int kExponentBits = 2, kMantissaBits = 1, kBias = 1;
  static constexpr std::uint32_t kMaxCode = 0x7, kNanCode = 0x7;
  static constexpr bool kHasInfinity = false;
};

}  // namespace narrowfloat
