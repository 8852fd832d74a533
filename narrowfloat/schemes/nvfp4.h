// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "narrowfloat/numerics/fast_codec.h"
#include "narrowfloat/numerics/scale.h"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat {

inline constexpr std::size_t kNvfp4Block = 16;

/// Common part of 1-D and 2-D NVFP4: E2M1 codes, one E4M3 scale per block, one fp32 amax per tensor
/// or per line. Every operation rounds to fp32 separately and in this order; another order changes
/// bytes. Columnwise codes are stored transposed. Each block shape is a separate type, so that the
/// compiler inlines its functions into the one kernel that calls them: this makes 2-D a fifth
/// faster. Source: TransformerEngine common/cast/nvfp4/core_nvfp4.cuh.
template <BlockShape kShape>
struct Nvfp4Rule {
  static constexpr BlockShape kBlock = kShape;
  using Element = E2M1;
  using Scale = E4M3;
  static constexpr SchemeLayout kLayout{
      .scale_type = ScaleType::kE4M3,
      .rowwise_order = ScaleOrder::kLineMajor,
      .columnwise_order = ScaleOrder::kLineMajor,
      .lines_per_scale = 1,  // in 2-D too: the tile's scale is stored for each of its lines
      .line_multiple = kSwizzleLines,
      .block_multiple = kSwizzleBlocks,
      .columnwise_transposed = true,
      .swizzles = true,
      .stores_scale = false,
      .amax = AmaxBuffers::kPerDirection,
  };
  static constexpr OptionSet kOnByDefault{};

  struct TensorState {
    float amax;
    float encode;             // S: maps the tensor to the range of codes and block scales
    float encode_over_max;    // S / 6
    float reciprocal_encode;  // 1 / S
    float decode;             // 1 / (6 * largest block scale)
    float full_range;         // 6 * largest block scale
    FourOverSix four_over_six;
    bool fast_error;
  };

  NF_HD static constexpr TensorState Prepare(float amax, const ScaleOptions& options) noexcept {
    constexpr float kSixth = 1.0f / kMaxValue<Element>;
    const float full_range = options.e4m3_max * kMaxValue<Element>;
    float encode = AtMost(full_range / amax, kLargestFloat);
    if (amax == 0.0f || encode == 0.0f) encode = 1.0f;
    return {amax,
            encode,
            encode * kSixth,
            1.0f / encode,
            1.0f / full_range,
            full_range,
            options.four_over_six,
            options.four_over_six_fast_error};
  }

  NF_HD static constexpr BlockScale ScaleBlock(float amax, const TensorState& state) noexcept {
    return ScaleFor(WantedScale(amax, state), state);
  }
  /// Returns a block's scale_inv before it is rounded to E4M3.
  NF_HD static constexpr float WantedScale(float amax, const TensorState& state) noexcept {
    return AtMost(amax * state.encode_over_max, kLargestFloat);
  }
  /// Returns the factor that a block's items are multiplied by, from the code of its scale_inv.
  NF_HD static constexpr float FactorOfCode(std::uint32_t code, const TensorState& state) noexcept {
    return AtMost(1.0f / (DecodeFast<Scale>(code) * state.reciprocal_encode), kLargestFloat);
  }

  NF_HD static constexpr float DecodeScale(std::uint32_t scale_inv,
                                           const TensorState& state) noexcept {
    return DecodeFast<Scale>(scale_inv) * state.amax * state.decode;
  }

  // 4over6: maps a block's amax to 4 or to 6, whichever gives the smaller error.

  NF_HD static constexpr bool UsesFourOverSix(const TensorState& state) noexcept {
    return state.four_over_six != FourOverSix::kOff;
  }
  /// Returns the scales that map the amax to 4 and to 6. The second is used on equal errors or NaN.
  NF_HD static constexpr std::array<BlockScale, 2> Candidates(float amax,
                                                              const TensorState& state) noexcept {
    const std::array<float, 2> wanted = WantedCandidates(amax, state);
    return {ScaleFor(wanted[0], state), ScaleFor(wanted[1], state)};
  }
  /// Returns the candidates' scale_inv before they are rounded to E4M3.
  NF_HD static constexpr std::array<float, 2> WantedCandidates(float amax,
                                                               const TensorState& state) noexcept {
    const float to_six = amax / kMaxValue<Element> * state.encode;
    return {to_six * 1.5f, to_six};
  }
  /// Returns one element's term of a candidate's error. Terms of a line are added in order.
  NF_HD static constexpr float Error(std::uint32_t code, std::uint32_t scale_inv, float x,
                                     const TensorState& state) noexcept {
    const float scaled = Decode<Element>(code) * Decode<Scale>(scale_inv);  // exact
    const float difference =
        state.fast_error ? scaled - x * state.encode : scaled * state.amax / state.full_range - x;
    if (state.four_over_six == FourOverSix::kMeanSquaredError) return difference * difference;
    return difference < 0.0f ? -difference : difference;
  }

 private:
  /// Returns the smaller of `x` and `limit`; `limit` if `x` is NaN.
  NF_HD static constexpr float AtMost(float x, float limit) noexcept {
    return x < limit ? x : limit;
  }
  NF_HD static constexpr BlockScale ScaleFor(float wanted, const TensorState& state) noexcept {
    const std::uint32_t code = EncodeFast<Scale>(wanted);  // saturates at 448
    return {code, FactorOfCode(code, state)};
  }
};

/// NVFP4 with blocks of 1x16 rowwise and 16x1 columnwise.
struct Nvfp4Scheme : Nvfp4Rule<BlockShape{1, kNvfp4Block}> {
  static constexpr OptionSet kOptions =
      Option::kAmax | Option::kAmaxColumnwise | Option::kSwizzled | Option::kHadamard |
      Option::kStochasticRounding | Option::kRowScaled | Option::kFourOverSix;
};

/// NVFP4 with tiles of 16x16. A tile's scale is stored for each line of the tile.
struct Nvfp4SquareScheme : Nvfp4Rule<BlockShape{kNvfp4Block, kNvfp4Block}> {
  static constexpr OptionSet kOptions = Option::kAmax | Option::kAmaxColumnwise |
                                        Option::kSwizzled | Option::kStochasticRounding |
                                        Option::kFourOverSix;
};

}  // namespace narrowfloat
