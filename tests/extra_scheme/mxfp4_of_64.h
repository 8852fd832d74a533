// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/numerics/type_list.h"
#include "narrowfloat/schemes/mxfp4.h"

namespace narrowfloat {

struct Mxfp4Of64Identity {
  static constexpr std::uint16_t kId = 0x7E01;
  static constexpr std::string_view kName = "mxfp4_of_64_e2m1";
};

/// MXFP4 with blocks of 64, which no library uses.
struct Mxfp4Of64 : Mxfp4Scheme<Mxfp4Of64Identity> {
  static constexpr BlockShape kBlock{1, 64};
};

using ExtraSchemes = TypeList<Mxfp4Of64>;

}  // namespace narrowfloat
