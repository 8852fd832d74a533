// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat {

inline constexpr std::size_t kFp8Block = 128;

/// Common part of 1-D and 2-D block-scaled FP8: one fp32 scale per block, computed from the block's
/// amax, a power of two by default. Columnwise codes are stored transposed. Source:
/// TransformerEngine Float8BlockQuantizer.
template <FloatFormat Format>
struct Fp8BlockRule {
  using Element = Format;
  static constexpr OptionSet kOptions = Option::kAmaxEpsilon | Option::kForcePow2Scales;
  static constexpr OptionSet kOnByDefault = OptionSet{} | Option::kForcePow2Scales;

  using TensorState = ScaleRule;

  NF_HD static constexpr TensorState Prepare(float /*amax*/, const ScaleOptions& options) noexcept {
    ScaleRule rule = options.rule;
    rule.overflow_scale = options.input_max;
    return rule;
  }
  NF_HD static constexpr BlockScale ScaleBlock(float amax, const TensorState& rule) noexcept {
    const float scale = ScaleFromAmax(amax, kMaxValue<Format>, rule);
    return {std::bit_cast<std::uint32_t>(1.0f / scale), scale};
  }
  NF_HD static constexpr float DecodeScale(std::uint32_t scale_inv, const TensorState&) noexcept {
    return std::bit_cast<float>(scale_inv);
  }
};

/// Blocks of 1x128 rowwise and 128x1 columnwise. Scales are stored block-major: the scales of one
/// block position, for all lines, are adjacent, as GEMMs read them.
template <FloatFormat Format>
struct BlockFp8Scheme : Fp8BlockRule<Format> {
  static constexpr BlockShape kBlock{1, kFp8Block};
  static constexpr SchemeLayout kLayout{
      .scale_type = ScaleType::kFloat32,
      .rowwise_order = ScaleOrder::kBlockMajor,
      .columnwise_order = ScaleOrder::kBlockMajor,
      .lines_per_scale = 1,
      .line_multiple = 4,
      .block_multiple = 1,
      .columnwise_transposed = true,
      .swizzles = false,
      .stores_scale = false,
      .amax = AmaxBuffers::kNone,
  };
};

/// Tiles of 128x128 with one stored scale each; both directions hold the same codes.
template <FloatFormat Format>
struct SquareBlockFp8Scheme : Fp8BlockRule<Format> {
  static constexpr BlockShape kBlock{kFp8Block, kFp8Block};
  static constexpr SchemeLayout kLayout{
      .scale_type = ScaleType::kFloat32,
      .rowwise_order = ScaleOrder::kLineMajor,
      .columnwise_order = ScaleOrder::kLineMajor,
      .lines_per_scale = kFp8Block,
      .line_multiple = 1,
      .block_multiple = 4,
      .columnwise_transposed = true,
      .swizzles = false,
      .stores_scale = false,
      .amax = AmaxBuffers::kNone,
  };
};

}  // namespace narrowfloat
