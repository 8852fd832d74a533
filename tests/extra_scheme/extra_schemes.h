// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/numerics/type_list.h"
#include "narrowfloat/schemes/fp8_block.h"
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

struct Fp8Block64x64Identity {
  static constexpr std::uint16_t kId = 0x7E02;
  static constexpr std::string_view kName = "fp8_block64x64_e4m3";
};

/// Block-scaled FP8 with tiles of 64x64, smaller than the vector kernels' patches.
struct Fp8Block64x64 : SquareBlockFp8Scheme<E4M3, Fp8Block64x64Identity> {
  static constexpr BlockShape kBlock{64, 64};
  static constexpr SchemeLayout kLayout = [] {
    SchemeLayout layout = SquareBlockFp8Scheme<E4M3, Fp8Block64x64Identity>::kLayout;
    layout.lines_per_scale = kBlock.rows;
    return layout;
  }();
};

using ExtraSchemes = TypeList<Mxfp4Of64, Fp8Block64x64>;

}  // namespace narrowfloat
