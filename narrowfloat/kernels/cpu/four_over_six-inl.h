// SPDX-License-Identifier: Apache-2.0
// Chooses between two scales of a block by their quantization errors (4over6). Lanes are blocks;
// the errors of a block's items are added in the order of the items. Compiled once per instruction
// set.
#if defined(NARROWFLOAT_KERNELS_CPU_FOUR_OVER_SIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_FOUR_OVER_SIX_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_FOUR_OVER_SIX_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_FOUR_OVER_SIX_INL_H_
#endif

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/pack-inl.h"
#include "narrowfloat/kernels/scalar/items.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Up to kMaxBytes blocks: their items, two scales for each, and the errors of the kLines lines
/// that share a scale. kPositions is the length of a block's line. Requires: kMaxBytes is a
/// multiple of the vector's length.
template <Scheme S, std::size_t kMaxBytes, std::size_t kLines, std::size_t kPositions>
class FourOverSixChoice {
 public:
  /// Computes S::Candidates of blocks with these amaxes. Returns true if no block needs the slow
  /// path of ComputeTwoLevelScales. Tests the candidate for 6 only: the stored scale of the one for
  /// 4 is larger, so its products are smaller.
  template <class States>
  HWY_INLINE bool ComputeCandidates(const float* amax, std::size_t blocks, const States& states) {
    const DF df;
    constexpr float kMax = kMaxValue<typename S::Element>;
    auto slow = hn::Zero(df);
    for (std::size_t j = 0; j < blocks; j += hn::Lanes(df)) {
      const auto of = hn::Load(df, amax + j);
      const auto to_six = hn::Mul(hn::Div(of, hn::Set(df, kMax)), states.Encode(j));
      const auto to_four = hn::Mul(to_six, hn::Set(df, 1.5f));
      candidates_[0].Set(j, ScaleOf<typename S::Scale>(to_four, states.ReciprocalEncode(j)));
      candidates_[1].Set(j, ScaleOf<typename S::Scale>(to_six, states.ReciprocalEncode(j)));
      slow = hn::Or(slow, NeedsSlowPath<typename S::Scale>(to_six, of));
    }
    return hn::AllFalse(df, hn::MaskFromVec(slow));
  }

  /// Returns item `i` of each block's line, for the caller to fill.
  float* Items(std::size_t i) { return items_[i]; }

  /// Computes both errors of a line of each block. Requires: Items() are filled.
  template <class States>
  HWY_INLINE void ComputeErrors(std::size_t line, std::size_t blocks, const States& states,
                                const typename S::TensorState& options) {
    const bool squares = options.four_over_six == FourOverSix::kMeanSquaredError;
    const auto full_range = hn::Set(DF(), options.full_range);
    for (std::size_t k = 0; k < 2; ++k) {
      float* errors = errors_[k][line];
      if (options.fast_error) {
        squares
            ? ComputeLineErrors<true, true>(candidates_[k], blocks, states, full_range, errors)
            : ComputeLineErrors<true, false>(candidates_[k], blocks, states, full_range, errors);
      } else {
        squares
            ? ComputeLineErrors<false, true>(candidates_[k], blocks, states, full_range, errors)
            : ComputeLineErrors<false, false>(candidates_[k], blocks, states, full_range, errors);
      }
    }
  }

  /// Adds the errors of a block's lines by halves, as the reference does.
  HWY_INLINE void AddLines(std::size_t blocks) {
    for (auto& errors : errors_) {
      for (std::size_t half = kLines / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) {
          for (std::size_t j = 0; j < blocks; ++j) errors[i][j] += errors[i + half][j];
        }
      }
    }
  }
  /// Does the same where `lines` adjacent lanes are the lines of one block; each gets the sum.
  HWY_INLINE void AddAdjacentLines(std::size_t blocks, std::size_t lines) {
    for (auto& errors : errors_) {
      for (std::size_t first = 0; first < blocks; first += lines) {
        float* of = errors[0] + first;
        for (std::size_t half = lines / 2; half > 0; half /= 2) {
          for (std::size_t i = 0; i < half; ++i) of[i] += of[i + half];
        }
        std::fill_n(of, lines, of[0]);
      }
    }
  }

  /// Stores the scale with the smaller error; the second one if they are equal or one is NaN.
  HWY_INLINE void Choose(std::size_t blocks, std::uint32_t* scale_inv, float* scales) const {
    for (std::size_t j = 0; j < blocks; ++j) {
      const bool first = errors_[0][0][j] < errors_[1][0][j];
      scale_inv[j] = first ? candidates_[0].code[j] : candidates_[1].code[j];
      scales[j] = first ? candidates_[0].scale[j] : candidates_[1].scale[j];
    }
  }

 private:
  struct Candidate {
    alignas(64) std::uint32_t code[kMaxBytes];
    alignas(64) float value[kMaxBytes];
    alignas(64) float scale[kMaxBytes];

    HWY_INLINE void Set(std::size_t j, const TwoLevelScale& of) {
      hn::Store(of.code, hn::RebindToUnsigned<DF>(), code + j);
      hn::Store(of.value, DF(), value + j);
      hn::Store(of.scale, DF(), scale + j);
    }
  };

  /// Computes the sum of S::Error over a line, with the same operations. NaN items make it NaN.
  template <bool kFast, bool kSquares, class States>
  HWY_INLINE void ComputeLineErrors(const Candidate& candidate, std::size_t blocks,
                                    const States& states, hn::Vec<DF> full_range,
                                    float* errors) const {
    using F = typename S::Element;
    const DF df;
    for (std::size_t j = 0; j < blocks; j += hn::Lanes(df)) {
      const auto scale = hn::Load(df, candidate.scale + j),
                 value = hn::Load(df, candidate.value + j);
      const auto encode = states.Encode(j), amax = states.Amax(j);
      auto error = hn::Zero(df);
      for (std::size_t i = 0; i < kPositions; ++i) {
        const auto x = hn::Load(df, items_[i] + j);
        const auto product = hn::Min(hn::Abs(hn::Mul(x, scale)), hn::Set(df, kMaxValue<F>));
        const auto scaled = hn::Mul(hn::CopySign(RoundTo<F>(product), x), value);  // exact
        const auto difference = kFast ? hn::Sub(scaled, hn::Mul(x, encode))
                                      : hn::Sub(hn::Div(hn::Mul(scaled, amax), full_range), x);
        error = hn::Add(error, kSquares ? hn::Mul(difference, difference) : hn::Abs(difference));
      }
      hn::Store(error, df, errors + j);
    }
  }

  Candidate candidates_[2];
  alignas(64) float items_[kPositions][kMaxBytes] = {};  // items that a short block lacks are zeros
  alignas(64) float errors_[2][kLines][kMaxBytes] = {};
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
