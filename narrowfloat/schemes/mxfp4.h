// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat {

/// MXFP4: E2M1 codes under an E8M0 scale, the smallest power of two at or above amax / 6, for 32
/// elements of a row (rowwise) or of a column (columnwise). Columnwise codes are stored transposed,
/// since two codes share a byte along the line that a GEMM reads. Source: OCP MX 1.0 section 6.3,
/// with the scale rounded up as TransformerEngine's reference for `pow_2_scales` does.
template <class Identity>
struct Mxfp4 : Identity {
  using Element = E2M1;
  static constexpr BlockShape kBlock{1, kMxBlock};
  static constexpr SchemeLayout kLayout{
      .scale_type = ScaleType::kE8M0,
      .rowwise_order = ScaleOrder::kLineMajor,
      .columnwise_order = ScaleOrder::kLineMajor,
      .lines_per_scale = 1,
      .line_multiple = 128,
      .block_multiple = 4,
      .columnwise_transposed = true,
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
    constexpr float kReciprocalOfMax = 1.0f / kMaxValue<Element>;
    const std::uint32_t code = EncodeE8M0Up(amax * kReciprocalOfMax);
    return {code, DecodeE8M0Reciprocal(code)};
  }
  NF_HD static constexpr float DecodeScale(std::uint32_t scale_inv, const TensorState&) noexcept {
    return DecodeE8M0(scale_inv);
  }
};

struct Mxfp4OneDimensional {
  static constexpr std::uint16_t kId = 0x0501;
  static constexpr std::string_view kName = "mxfp4";
};

}  // namespace narrowfloat
