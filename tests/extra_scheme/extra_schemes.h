// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>

#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/mxfp4.h"

namespace narrowfloat {

/// MXFP4 with blocks of 64, a length that no library uses.
struct Mxfp4Of64 : Mxfp4Scheme {
  static constexpr BlockShape kBlock{1, 64};
};

/// Block-scaled FP8 with tiles of 64x64, smaller than the vector kernels' patches.
struct Fp8Block64x64 : SquareBlockFp8Scheme<E4M3> {
  static constexpr BlockShape kBlock{64, 64};
  static constexpr SchemeLayout kLayout = [] {
    SchemeLayout layout = SquareBlockFp8Scheme<E4M3>::kLayout;
    layout.lines_per_scale = kBlock.rows;
    return layout;
  }();
};

inline constexpr std::tuple kExtraSchemes{
    Entry<Mxfp4Of64>{0x7E01, "mxfp4_of_64_e2m1"},
    Entry<Fp8Block64x64>{0x7E02, "fp8_block64x64_e4m3"},
};

}  // namespace narrowfloat
