// SPDX-License-Identifier: Apache-2.0
// Computes the quantization errors of blocks under two scales (4over6). Lanes are blocks; the
// errors of a block's items are added in the order of the items. Compiled once per instruction set.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/pack_kernels.h"
#include "narrowfloat/kernels/cpu/scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

/// Ways to compute the difference of an item and its decoded code. kMultiplied: in the range of
/// codes and scales, where the item is multiplied by `encode`. kDivided: in the range of items;
/// divides by full_range. kByQuotients: kDivided, but divides once per block for the codes 1 and
/// 1.5. Other codes and their rounded quotients are these times a power of two. Requires: all
/// numbers are normal in fp32. A code times its block's value is 0 or from 2^-10 to 2688.
enum class Difference { kMultiplied, kDivided, kByQuotients };

/// Magnitudes of items: of[i][j] is item i of block or column j.
struct StagedItems {
  alignas(64) float of[cpu::kPackUnit][cpu::kPackPlaces];
};

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

/// Stages the magnitudes of a row of `blocks` adjacent blocks: transposes squares of 4 x 4 items of
/// four blocks. 2 ops for a vector that goes in. Blocks past the last one, up to a whole vector of
/// blocks, get the last one's items.
template <class T>
HWY_INLINE void StageRow(const std::byte* row, std::size_t blocks, StagedItems& items) {
  constexpr std::size_t kSquare = 4;
  const DF df;
  static_assert(hn::MaxLanes(df) <= cpu::kPackUnit);
  const hn::Repartition<double, decltype(df)> pairs;
  const auto load = [&](std::size_t j, std::size_t i) NF_INLINE_ATTR {
    const std::size_t item = std::min(j, blocks - 1) * cpu::kPackUnit + i;
    return hn::Abs(LoadFloats<T>(row + item * kItemSize<T>));
  };
  for (std::size_t j = 0; j < RoundUp(blocks, hn::Lanes(DF())); j += kSquare) {
    for (std::size_t i = 0; i < cpu::kPackUnit; i += hn::Lanes(df)) {
      const auto a = load(j, i), b = load(j + 1, i), c = load(j + 2, i), d = load(j + 3, i);
      const auto lower_ab = hn::BitCast(pairs, hn::InterleaveLower(df, a, b)),
                 upper_ab = hn::BitCast(pairs, hn::InterleaveUpper(df, a, b)),
                 lower_cd = hn::BitCast(pairs, hn::InterleaveLower(df, c, d)),
                 upper_cd = hn::BitCast(pairs, hn::InterleaveUpper(df, c, d));
      const auto store = [&](std::size_t k, auto vector) NF_INLINE_ATTR {
        StoreParts(df, hn::BitCast(df, vector), items.of[i + k] + j, kSquare * cpu::kPackPlaces);
      };
      store(0, hn::InterleaveLower(pairs, lower_ab, lower_cd));
      store(1, hn::InterleaveUpper(pairs, lower_ab, lower_cd));
      store(2, hn::InterleaveLower(pairs, upper_ab, upper_cd));
      store(3, hn::InterleaveUpper(pairs, upper_ab, upper_cd));
    }
  }
}

/// Returns true if the line amaxes of all blocks or columns are from `lowest` to `highest`.
HWY_INLINE bool AmaxesAreWithin(float lowest, float highest, std::size_t count,
                                const cpu::TwoLevelFactors& factors) {
  const DF df;
  auto all = hn::Eq(hn::Zero(df), hn::Zero(df));
  for (std::size_t j = 0; j < count; j += hn::Lanes(df)) {
    const auto amax = hn::Load(df, factors.amax + j);
    all = hn::And(all,
                  hn::And(hn::Ge(amax, hn::Set(df, lowest)), hn::Le(amax, hn::Set(df, highest))));
  }
  return hn::AllTrue(df, all);
}

/// Computes the sums of the errors of the first `positions` staged items for both candidates, with
/// the operations of Nvfp4Rule::Error on magnitudes: an item's sign only changes the sign of its
/// difference. kByQuotients: 12 ops for a vector of items and a candidate.
template <Difference kDifference, bool kSquares>
HWY_NOINLINE void AddErrors(const StagedItems& items, std::size_t positions, std::size_t count,
                            const cpu::TwoLevelFactors& factors, float full_range,
                            const cpu::ScaleCandidates& candidates, cpu::CandidateErrors& errors) {
  const DF df;
  const D32 d32;
  const auto range = hn::Set(df, full_range);
  for (std::size_t j = 0; j < count; j += hn::Lanes(df)) {
    const auto encode = hn::Load(df, factors.encode + j), amax = hn::Load(df, factors.amax + j);
    const auto decoded = [&](hn::Vec<DF> scaled)
                             NF_INLINE_ATTR { return hn::Div(hn::Mul(scaled, amax), range); };
    for (std::size_t k = 0; k < 2; ++k) {
      const auto scale = hn::Load(df, candidates.of[k].scale + j);
      const auto value = hn::Load(df, candidates.of[k].value + j);
      // The decoded values of the codes 1 and 1.5.
      const auto one = decoded(value), three_halves = decoded(hn::Mul(value, hn::Set(df, 1.5f)));
      auto sum = hn::Zero(df);
      for (std::size_t i = 0; i < positions; ++i) {
        const auto x = hn::Load(df, items.of[i] + j);
        const auto code =
            RoundToGrid<E2M1>(hn::Min(hn::Mul(x, scale), hn::Set(df, kMaxValue<E2M1>)));
        auto difference = code;
        if constexpr (kDifference == Difference::kMultiplied) {
          difference = hn::Sub(hn::Mul(code, value), hn::Mul(x, encode));
        } else if constexpr (kDifference == Difference::kDivided) {
          difference = hn::Sub(decoded(hn::Mul(code, value)), x);
        } else {
          // The code is 0, a power of two, or 1.5 times one: its first mantissa bit, moved to the
          // sign, selects `unit`. The product with the power is exact.
          const auto bits = hn::BitCast(d32, code);
          const auto power = hn::BitCast(df, hn::And(bits, hn::Set(d32, kFloatInfinity)));
          const auto mantissa_to_sign = hn::BitCast(df, hn::ShiftLeft<9>(bits));
          const auto unit = hn::IfNegativeThenElse(mantissa_to_sign, three_halves, one);
          difference = hn::MulSub(power, unit, x);
        }
        sum = hn::Add(sum, kSquares ? hn::Mul(difference, difference) : hn::Abs(difference));
      }
      hn::Store(sum, df, errors.of[k] + j);
    }
  }
}

HWY_INLINE void ComputeErrors(const StagedItems& items, std::size_t positions, std::size_t count,
                              const cpu::TwoLevelFactors& factors, const cpu::ErrorRule& rule,
                              const cpu::ScaleCandidates& candidates,
                              cpu::CandidateErrors& errors) {
  const auto compute = [&]<Difference kDifference>() NF_INLINE_ATTR {
    const auto add = rule.squares ? &AddErrors<kDifference, true> : &AddErrors<kDifference, false>;
    add(items, positions, count, factors, rule.full_range, candidates, errors);
  };
  if (rule.fast_error) return compute.template operator()<Difference::kMultiplied>();
  if (AmaxesAreWithin(0x1p-60f, 0x1p100f, count, factors))
    return compute.template operator()<Difference::kByQuotients>();
  compute.template operator()<Difference::kDivided>();
}

#if HWY_TARGET <= HWY_AVX3
// Errors that are estimated in fixed point decide most blocks: an error is about the distance of
// the product from the nearest number of E2M1, divided by the scale. 28 ops for 32 items of a row.
// AddErrors and staging take 60.

/// Fraction bits of fixed-point products in 16-bit lanes. Requires: products are below 8.
inline constexpr int kFractionBits = 12;

/// Returns for each pair of items the sum of both distances of a product with `scale` from the
/// nearest number of E2M1, or of the squares of these distances. Units: 2^-kFractionBits, squared
/// for squares. Requires: products are from 0 to below 8. 9 ops.
template <bool kSquares>
HWY_INLINE hn::Vec<DI> DistancesOfPairs(hn::Vec<DF> first, hn::Vec<DF> second, hn::Vec<DF> scale) {
  const DF df;
  const hn::Full512<std::int16_t> di16;
  // The number nearest to a product changes at multiples of a quarter.
  alignas(64) static constexpr auto kNearest = [] {
    std::array<std::int16_t, 32> nearest{};
    for (std::size_t i = 0; i < nearest.size(); ++i) {
      const float number = Decode<E2M1>(Encode<E2M1>((static_cast<float>(i) + 0.5f) / 4));
      nearest[i] = static_cast<std::int16_t>(number * (1 << kFractionBits));
    }
    return nearest;
  }();
  // The last bit of the sum is one unit. Its lower half is the rounded product in units.
  const auto base = hn::Set(df, static_cast<float>(1 << (23 - kFractionBits)));
  const auto low = hn::BitCast(di16, hn::MulAdd(first, scale, base));
  const auto high = hn::ShiftLeft<16>(hn::BitCast(DI(), hn::MulAdd(second, scale, base)));
  const auto products = hn::OddEven(hn::BitCast(di16, high), low);
  const auto quarters = hn::ShiftRight<kFractionBits - 2>(products);
  const auto table = hn::Load(di16, kNearest.data());
  const hn::Vec512<std::int16_t> nearest{_mm512_permutexvar_epi16(quarters.raw, table.raw)};
  const auto distances = hn::Abs(hn::Sub(products, nearest));
  const auto factors = kSquares ? distances : hn::Set(di16, std::int16_t{1});
  return hn::Vec<DI>{_mm512_madd_epi16(distances.raw, factors.raw)};
}

/// Returns the magnitudes of pairs of 16-bit items. 1 op.
template <class T>
HWY_INLINE hn::Vec<D32> LoadPairs(const std::byte* items) {
  return hn::And(LoadItems(D32(), items), hn::Set(D32(), 0x7FFF7FFFu));
}

/// Implements CompareFn: multiplies the second candidate's sums by the ratio of the scales, so that
/// both sums have one unit. Each sum is of `lines` lines of 16 items. For amaxes in the tested
/// range, no square of an error overflows, and a subnormal square rounds by less than 2^-11 squared
/// units.
///
/// A product in fixed point differs from the exact one by less than 0.52 units: half a unit, and
/// 0.011 that fp32 rounds in both computations. A distance differs by as much. A sum of 16
/// distances differs by less than 9, with the roundings of the exact sum. A sum q of n squares
/// differs by at most 2 * 0.52 * sqrt(n * q) + 0.52^2 * n (Cauchy), for n = 16 by less than 5 *
/// sqrt(q) + 5. A block of zeros is never undecided, because its errors are equal.
template <bool kSquares>
std::size_t Compare(const cpu::TwoLevelFactors& factors, const cpu::ScaleCandidates& candidates,
                    std::size_t lines, std::size_t count, cpu::CandidateErrors& errors,
                    std::uint8_t* undecided) noexcept {
  if (!AmaxesAreWithin(0x1p-40f, 0x1p60f, count, factors)) return count;
  const DF df;
  const auto of_lines = hn::Set(df, static_cast<float>(lines));
  const auto slack = [&](hn::Vec<DF> sum) NF_INLINE_ATTR {
    if constexpr (!kSquares) return hn::Mul(of_lines, hn::Set(df, 9.0f));
    return hn::Mul(hn::Add(hn::Sqrt(hn::Mul(sum, of_lines)), of_lines), hn::Set(df, 5.0f));
  };
  std::size_t total = 0;
  for (std::size_t j = 0; j < count; j += hn::Lanes(df)) {
    const auto first = hn::Load(df, errors.of[0] + j), second = hn::Load(df, errors.of[1] + j);
    const auto ratio =
        hn::Div(hn::Load(df, candidates.of[0].scale + j), hn::Load(df, candidates.of[1].scale + j));
    const auto weight = kSquares ? hn::Mul(ratio, ratio) : ratio;
    const auto weighted = hn::Mul(second, weight);
    hn::Store(weighted, df, errors.of[1] + j);
    const auto margin = hn::MulAdd(slack(second), weight, slack(first));
    const auto is_undecided =
        hn::And(hn::Le(hn::Abs(hn::Sub(first, weighted)), margin),
                hn::Gt(hn::Load(df, candidates.of[1].value + j), hn::Zero(df)));
    std::uint8_t bits[8];
    hn::StoreMaskBits(df, is_undecided, bits);
    std::uint32_t left = bits[0] | std::uint32_t{bits[1]} << 8;
    if (count - j < hn::Lanes(df)) left &= (1u << (count - j)) - 1;
    for (; left != 0; left &= left - 1)
      undecided[total++] =
          static_cast<std::uint8_t>(j + static_cast<std::size_t>(std::countr_zero(left)));
  }
  return total;
}
#endif

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
