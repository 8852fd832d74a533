// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat {

/// MXFP4: E2M1 codes under an E8M0 scale, the smallest power of two at or above amax / 6, for 32
/// elements of a row (rowwise) or of a column (columnwise). Columnwise codes are stored transposed,
/// since two codes share a byte along the line that a GEMM reads. Source: OCP MX 1.0 section 6.3,
/// with the scale rounded up as TransformerEngine's reference for `pow_2_scales` does.
struct Mxfp4Scheme : MxRule<E2M1> {
  static constexpr BlockShape kBlock{1, kMxBlock};
  static constexpr SchemeLayout kLayout = [] {
    SchemeLayout layout = MxRule<E2M1>::kLayout;
    layout.columnwise_order = ScaleOrder::kLineMajor;
    layout.columnwise_transposed = true;
    return layout;
  }();
};

}  // namespace narrowfloat
