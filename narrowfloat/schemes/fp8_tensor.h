// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>

#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat {

/// Per-tensor FP8: one fp32 scale, given (delayed scaling) or computed from the tensor's amax
/// (current scaling). Columnwise codes are the byte transpose; both directions share one scale_inv.
/// Source: TransformerEngine Float8Quantizer and Float8CurrentScalingQuantizer.
template <FloatFormat Format>
struct PerTensorFp8Scheme {
  using Element = Format;
  static constexpr BlockShape kBlock = kWholeTensor;
  static constexpr SchemeLayout kLayout{
      .scale_type = ScaleType::kFloat32,
      .rowwise_order = ScaleOrder::kLineMajor,
      .columnwise_order = ScaleOrder::kLineMajor,
      .lines_per_scale = 0,
      .line_multiple = 1,
      .block_multiple = 1,
      .columnwise_transposed = true,
      .swizzles = false,
      .stores_scale = true,
      .amax = AmaxBuffers::kOne,
  };
  static constexpr OptionSet kOptions =
      Option::kScale | Option::kAmax | Option::kAmaxEpsilon | Option::kForcePow2Scales;
  static constexpr OptionSet kOnByDefault{};

  struct TensorState {
    float scale;
  };

  NF_HD static constexpr TensorState Prepare(float amax, const ScaleOptions& options) noexcept {
    return {options.has_scale ? options.scale
                              : ScaleFromAmax(amax, kMaxValue<Format>, options.rule)};
  }
  NF_HD static constexpr BlockScale ScaleBlock(float /*amax*/, const TensorState& state) noexcept {
    return {std::bit_cast<std::uint32_t>(CanonicalNan(1.0f / state.scale)), state.scale};
  }
  NF_HD static constexpr float DecodeScale(std::uint32_t scale_inv, const TensorState&) noexcept {
    return std::bit_cast<float>(scale_inv);
  }
};

}  // namespace narrowfloat
