// SPDX-License-Identifier: Apache-2.0
// Choosing between two scales of a block by the errors that they leave (4over6). Lanes are blocks,
// whose items are added up in their order. Compiled once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_CHOOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_CHOOSE_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_CHOOSE_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_CHOOSE_INL_H_
#endif

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/pack-inl.h"
#include "narrowfloat/kernels/scalar/items.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Up to kMaxBytes blocks, a multiple of the vector's length: their items, two scales for each, and
/// the errors of the kLines lines that share a scale. kAlong is a line's length.
template <Scheme S, std::size_t kMaxBytes, std::size_t kLines, std::size_t kAlong>
class FourOverSixChoice {
 public:
  /// S::Candidates of blocks with these amaxes. Whether products with these scales round to numbers
  /// of S's, as ComputeTwoLevelScales has it: the scale for 4 is the larger one, so that what the
  /// other keeps within S it does, too.
  template <class States>
  HWY_INLINE bool Propose(const float* amax, std::size_t blocks, const States& states) {
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

  /// Item `i` of each block's line.
  float* Items(std::size_t i) { return items_[i]; }

  /// Measures the errors of a line whose items were put in.
  template <class States>
  HWY_INLINE void Measure(std::size_t line, std::size_t blocks, const States& states,
                          const typename S::TensorState& options) {
    const bool squares = options.four_over_six == FourOverSix::kMeanSquaredError;
    const auto full_range = hn::Set(DF(), options.full_range);
    for (std::size_t k = 0; k < 2; ++k) {
      float* errors = errors_[k][line];
      if (options.fast_error) {
        squares ? MeasureLine<true, true>(candidates_[k], blocks, states, full_range, errors)
                : MeasureLine<true, false>(candidates_[k], blocks, states, full_range, errors);
      } else {
        squares ? MeasureLine<false, true>(candidates_[k], blocks, states, full_range, errors)
                : MeasureLine<false, false>(candidates_[k], blocks, states, full_range, errors);
      }
    }
  }

  /// Errors of a block's lines add up by halves.
  HWY_INLINE void AddLines(std::size_t blocks) {
    for (auto& errors : errors_) {
      for (std::size_t half = kLines / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) {
          for (std::size_t j = 0; j < blocks; ++j) errors[i][j] += errors[i + half][j];
        }
      }
    }
  }
  /// The same where the lines of a block are `lines` neighbours; each of them gets the sum.
  HWY_INLINE void AddNeighbours(std::size_t blocks, std::size_t lines) {
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

  /// Of equal errors, or if one is NaN, the second is taken.
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

  /// S::Error of each item, operation by operation. A NaN among the items makes the error NaN.
  template <bool kFast, bool kSquares, class States>
  HWY_INLINE void MeasureLine(const Candidate& candidate, std::size_t blocks, const States& states,
                              hn::Vec<DF> full_range, float* errors) const {
    using F = typename S::Element;
    const DF df;
    for (std::size_t j = 0; j < blocks; j += hn::Lanes(df)) {
      const auto scale = hn::Load(df, candidate.scale + j),
                 value = hn::Load(df, candidate.value + j);
      const auto encode = states.Encode(j), amax = states.Amax(j);
      auto error = hn::Zero(df);
      for (std::size_t i = 0; i < kAlong; ++i) {
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
  alignas(64) float items_[kAlong][kMaxBytes] = {};  // what is missing of a block counts as zeros
  alignas(64) float errors_[2][kLines][kMaxBytes] = {};
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
