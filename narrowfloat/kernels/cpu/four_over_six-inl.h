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

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/pack-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// How the difference of an item from its decoded code is computed: both are multiplied by the
/// scale of all blocks, or the code's value is divided by it.
enum class Difference { kMultiplied, kDivided, kDividedByReciprocal };

/// Returns a / divisor, correctly rounded: the remainder of the first quotient is exact under a
/// fused multiply-add. Requires: native FMA; `reciprocal` is 1 / divisor, rounded; the divisor is
/// NVFP4's range of 6 * 448 or 6 * 256, for which kernel_unit_test divides every fraction; no
/// remainder leaves fp32's normal numbers (DividesByReciprocal). 3 ops.
HWY_INLINE hn::Vec<DF> DivideByReciprocal(hn::Vec<DF> a, hn::Vec<DF> divisor,
                                          hn::Vec<DF> reciprocal) {
  const auto quotient = hn::Mul(a, reciprocal);
  return hn::MulAdd(hn::NegMulAdd(quotient, divisor, a), reciprocal, quotient);
}
/// Returns a mask of the amaxes with which DivideByReciprocal may be used on products of decoded
/// values: these are 0 or from 2^-10 to 2688.
HWY_INLINE hn::Mask<DF> DividesByReciprocal(hn::Vec<DF> amax) {
  const DF df;
  return hn::And(hn::Ge(amax, hn::Set(df, 0x1p-60f)), hn::Le(amax, hn::Set(df, 0x1p100f)));
}

/// Returns the fp32 magnitudes of Lanes(df) items. NaN may become infinity.
template <class T, class D>
HWY_INLINE hn::Vec<D> LoadMagnitudes(D df, const std::byte* items) {
  const hn::RebindToUnsigned<D> d32;
  if constexpr (kItemSize<T> == 4) {
    return hn::Abs(LoadItems(df, items));
  } else {
    const auto magnitude =
        hn::And(hn::PromoteTo(d32, LoadItems(hn::Rebind<std::uint16_t, D>(), items)),
                hn::Set(d32, 0x7FFFu));
    return WidenMagnitudes<T, Inputs::kAll>(d32, magnitude);
  }
}

/// Stores the 128-bit parts of a vector, `stride` floats apart.
template <class D>
HWY_INLINE void StoreParts(D df, hn::Vec<D> parts, float* to, std::size_t stride) {
  if constexpr (hn::MaxLanes(df) <= 4) {
    hn::StoreU(parts, df, to);
  } else {
    const hn::Half<D> half;
    StoreParts(half, hn::LowerHalf(half, parts), to, stride);
    StoreParts(half, hn::UpperHalf(half, parts), to + hn::Lanes(half) / 4 * stride, stride);
  }
}

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

  /// Takes the items of a line of `blocks` adjacent blocks: of four blocks at a time, transposes
  /// squares of 4 x 4 items. 2 ops for a vector that goes in.
  template <class T>
  HWY_INLINE void SetItemsOfBlocks(const std::byte* row, std::size_t blocks) {
    const hn::CappedTag<float, kPositions> df;
    const hn::Repartition<double, decltype(df)> pairs;
    constexpr std::size_t kSquare = 4;
    const auto load = [&](std::size_t j, std::size_t i) NF_INLINE_ATTR {
      // Blocks past the last one have the items of the last one: their errors do not count.
      const std::size_t item = std::min(j, blocks - 1) * kPositions + i;
      return LoadMagnitudes<T>(df, row + item * kItemSize<T>);
    };
    for (std::size_t j = 0; j < blocks; j += kSquare) {
      for (std::size_t i = 0; i < kPositions; i += hn::Lanes(df)) {
        const auto a = load(j, i), b = load(j + 1, i), c = load(j + 2, i), d = load(j + 3, i);
        const auto lower_ab = hn::BitCast(pairs, hn::InterleaveLower(df, a, b)),
                   upper_ab = hn::BitCast(pairs, hn::InterleaveUpper(df, a, b)),
                   lower_cd = hn::BitCast(pairs, hn::InterleaveLower(df, c, d)),
                   upper_cd = hn::BitCast(pairs, hn::InterleaveUpper(df, c, d));
        const auto store = [&](std::size_t k, auto items) NF_INLINE_ATTR {
          StoreParts(df, hn::BitCast(df, items), items_[i + k] + j, kSquare * kMaxBytes);
        };
        store(0, hn::InterleaveLower(pairs, lower_ab, lower_cd));
        store(1, hn::InterleaveUpper(pairs, lower_ab, lower_cd));
        store(2, hn::InterleaveLower(pairs, upper_ab, upper_cd));
        store(3, hn::InterleaveUpper(pairs, upper_ab, upper_cd));
      }
    }
  }
  /// Takes item `i` of each block from adjacent items. Requires: `blocks` are whole vectors.
  template <class T>
  HWY_INLINE void SetItems(std::size_t i, const std::byte* row, std::size_t blocks) {
    for (std::size_t j = 0; j < blocks; j += hn::Lanes(DF()))
      hn::Store(LoadMagnitudes<T>(DF(), row + j * kItemSize<T>), DF(), items_[i] + j);
  }

  /// Returns the magnitude of item `i` of block `j`.
  float Item(std::size_t i, std::size_t j) const { return items_[i][j]; }

  /// Computes both errors of a line of each block. Requires: the items are set.
  template <class States>
  HWY_INLINE void ComputeErrors(std::size_t line, std::size_t blocks, const States& states,
                                const typename S::TensorState& options) {
    const bool squares = options.four_over_six == FourOverSix::kMeanSquaredError;
    const auto compute = [&](auto squared) NF_INLINE_ATTR {
      constexpr bool kSquares = decltype(squared)::value;
      if (options.fast_error)
        return ComputeLineErrors<Difference::kMultiplied, kSquares>(line, blocks, states, options);
      if (HWY_NATIVE_FMA && MayUseReciprocal(blocks, states))
        return ComputeLineErrors<Difference::kDividedByReciprocal, kSquares>(line, blocks, states,
                                                                             options);
      ComputeLineErrors<Difference::kDivided, kSquares>(line, blocks, states, options);
    };
    squares ? compute(std::true_type()) : compute(std::false_type());
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

  template <class States>
  static HWY_INLINE bool MayUseReciprocal(std::size_t blocks, const States& states) {
    auto may = hn::Eq(hn::Zero(DF()), hn::Zero(DF()));
    for (std::size_t j = 0; j < blocks; j += hn::Lanes(DF()))
      may = hn::And(may, DividesByReciprocal(states.Amax(j)));
    return hn::AllTrue(DF(), may);
  }

  /// Computes the sum of S::Error over a line for both candidates, with the same operations on
  /// magnitudes: an item's sign changes the sign of its difference only. NaN and infinite items
  /// make both sums infinite or NaN.
  template <Difference kDifference, bool kSquares, class States>
  HWY_INLINE void ComputeLineErrors(std::size_t line, std::size_t blocks, const States& states,
                                    const typename S::TensorState& options) {
    using F = typename S::Element;
    const DF df;
    const auto range = hn::Set(df, options.full_range);
    const auto reciprocal = hn::Set(df, 1.0f / options.full_range);
    for (std::size_t j = 0; j < blocks; j += hn::Lanes(df)) {
      const auto encode = states.Encode(j), amax = states.Amax(j);
      const auto term = [&](hn::Vec<DF> x, hn::Vec<DF> scale, hn::Vec<DF> value) NF_INLINE_ATTR {
        const auto product = hn::Min(hn::Mul(x, scale), hn::Set(df, kMaxValue<F>));
        const auto scaled = hn::Mul(RoundTo<F>(product), value);  // exact
        auto difference = scaled;
        if constexpr (kDifference == Difference::kMultiplied) {
          difference = hn::Sub(scaled, hn::Mul(x, encode));
        } else if constexpr (kDifference == Difference::kDivided) {
          difference = hn::Sub(hn::Div(hn::Mul(scaled, amax), range), x);
        } else {
          difference = hn::Sub(DivideByReciprocal(hn::Mul(scaled, amax), range, reciprocal), x);
        }
        return kSquares ? hn::Mul(difference, difference) : hn::Abs(difference);
      };
      const auto first_scale = hn::Load(df, candidates_[0].scale + j);
      const auto first_value = hn::Load(df, candidates_[0].value + j);
      const auto second_scale = hn::Load(df, candidates_[1].scale + j);
      const auto second_value = hn::Load(df, candidates_[1].value + j);
      auto first = hn::Zero(df), second = hn::Zero(df);
      for (std::size_t i = 0; i < kPositions; ++i) {
        const auto x = hn::Load(df, items_[i] + j);
        first = hn::Add(first, term(x, first_scale, first_value));
        second = hn::Add(second, term(x, second_scale, second_value));
      }
      hn::Store(first, df, errors_[0][line] + j);
      hn::Store(second, df, errors_[1][line] + j);
    }
  }

  Candidate candidates_[2];
  alignas(
      64) float items_[kPositions][kMaxBytes] = {};  // magnitudes; 0 where a block lacks an item
  alignas(64) float errors_[2][kLines][kMaxBytes] = {};
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
