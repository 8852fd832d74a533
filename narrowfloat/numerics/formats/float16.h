// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace narrowfloat {

/// IEEE 754 binary16: bias 15, largest 65504.
struct Float16 {
  static constexpr std::string_view kName = "float16";
  static constexpr int kExponentBits = 5, kMantissaBits = 10, kBias = 15;
  static constexpr std::uint32_t kMaxCode = 0x7BFF, kNanCode = 0x7E00;
  static constexpr bool kHasInfinity = true;
};

}  // namespace narrowfloat
