// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>

#include "narrowfloat/schemes/mxfp8.h"

namespace narrowfloat {

#if defined(NF_MUST_FAIL)
/// OCP FP6 E3M2: S.EEE.MM, bias 3, neither infinity nor NaN, largest 28.
struct E3M2 {
  static constexpr std::string_view kName = "e3m2";
  static constexpr int kExponentBits = 3, kMantissaBits = 2, kBias = 3;
  static constexpr std::uint32_t kMaxCode = 0x1F, kNanCode = 0x1F;
  static constexpr bool kHasInfinity = false;
};

inline constexpr std::tuple kExtraSchemes{Entry<Mxfp8Scheme<E3M2>>{0x7F02, "mxfp6_e3m2"}};
#else
inline constexpr std::tuple<> kExtraSchemes;
#endif

}  // namespace narrowfloat
