// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat {

inline constexpr std::size_t kMxBlock = 32;  // OCP MX 1.0, section 5.2: k

/// Common part of the MX schemes: one E8M0 scale per block, the smallest power of two >=
/// amax / max. Columnwise codes keep the input's orientation, except in MXFP4. Source: OCP MX 1.0
/// section 6.3, with the scale rounded up as TransformerEngine's MXFP8Quantizer does.
template <FloatFormat Format>
struct MxRule {
  using Element = Format;
  static constexpr SchemeLayout kLayout{
      .scale_type = ScaleType::kE8M0,
      .rowwise_order = ScaleOrder::kLineMajor,
      .columnwise_order = ScaleOrder::kBlockMajor,
      .lines_per_scale = 1,  // in 2-D too: the tile's scale is stored for each of its lines
      .line_multiple = kSwizzleLines,
      .block_multiple = kSwizzleBlocks,
      .columnwise_transposed = false,
      .swizzles = true,
      .stores_scale = false,
      .amax = AmaxBuffers::kNone,
  };
  static constexpr OptionSet kOptions = OptionSet{} | Option::kSwizzled;
  static constexpr OptionSet kOnByDefault{};

  struct TensorState {};

  NF_HD static constexpr TensorState Prepare(float /*amax*/, const ScaleOptions&) noexcept {
    return {};
  }
  NF_HD static constexpr BlockScale ScaleBlock(float amax, const TensorState&) noexcept {
    constexpr float kReciprocalOfMax =
        1.0f / kMaxValue<Format>;  // the kernels multiply, they do not divide
    const std::uint32_t code = EncodeE8M0Up(amax * kReciprocalOfMax);
    return {code, DecodeE8M0Reciprocal(code)};
  }
  NF_HD static constexpr float DecodeScale(std::uint32_t scale_inv, const TensorState&) noexcept {
    return DecodeE8M0(scale_inv);
  }
};

/// MXFP8 with blocks of 1x32 rowwise and 32x1 columnwise; each direction is quantized
/// independently.
template <FloatFormat Format>
struct Mxfp8Scheme : MxRule<Format> {
  static constexpr BlockShape kBlock{1, kMxBlock};
};

/// MXFP8 with tiles of 32x32. A tile's scale is stored for each line of the tile; both directions
/// have the same codes.
template <FloatFormat Format>
struct Mxfp8SquareScheme : MxRule<Format> {
  static constexpr BlockShape kBlock{kMxBlock, kMxBlock};
};

}  // namespace narrowfloat
