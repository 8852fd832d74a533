// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace narrowfloat {

/// bfloat16: the upper half of a binary32.
struct BFloat16 {
  static constexpr std::string_view kName = "bfloat16";
  static constexpr int kExponentBits = 8, kMantissaBits = 7, kBias = 127;
  static constexpr std::uint32_t kMaxCode = 0x7F7F, kNanCode = 0x7FC0;
  static constexpr bool kHasInfinity = true;
};

}  // namespace narrowfloat
