// SPDX-License-Identifier: Apache-2.0
// Computes the quantization errors of blocks under two scales (4over6). Lanes are blocks; the
// errors of a block's items are added in the order of the items. Compiled once per instruction set.
#pragma once

#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/pack_kernels.h"
#include "narrowfloat/kernels/cpu/scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// How the difference of an item from its decoded code is computed: both are multiplied by the
/// scale of all blocks, or the code's value is divided by it. kByQuotients divides once per block
/// for the codes 1 and 1.5. All other codes are these times a power of two, and their rounded
/// quotients are too. Requires for kByQuotients: all numbers are normal in fp32 (HasQuotients).
enum class Difference { kMultiplied, kDivided, kByQuotients };

/// Returns a mask of the amaxes with which kByQuotients may be used. A code times its block's value
/// is 0 or from 2^-10 to 2688.
HWY_INLINE hn::Mask<DF> HasQuotients(hn::Vec<DF> amax) {
  const DF df;
  return hn::And(hn::Ge(amax, hn::Set(df, 0x1p-60f)), hn::Le(amax, hn::Set(df, 0x1p100f)));
}

/// Magnitudes of items, those of a block one below the other.
struct StagedItems {
  alignas(64) float of[cpu::kPackUnit][cpu::kPackPlaces];
};

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

/// Stages the magnitudes of a row of `blocks` adjacent blocks, items[i] for the i-th of each block:
/// transposes squares of 4 x 4 items of four blocks. 2 ops for a vector that goes in. Blocks past
/// the last one, up to a whole vector of them, get its items.
template <class T>
HWY_INLINE void StageRow(const std::byte* row, std::size_t blocks, StagedItems& items) {
  constexpr std::size_t kSquare = 4;
  const hn::CappedTag<float, cpu::kPackUnit> df;
  const hn::Repartition<double, decltype(df)> pairs;
  const auto load = [&](std::size_t j, std::size_t i) NF_INLINE_ATTR {
    const std::size_t item = std::min(j, blocks - 1) * cpu::kPackUnit + i;
    return LoadMagnitudes<T>(df, row + item * kItemSize<T>);
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

/// Returns true if kByQuotients may be used for all blocks.
HWY_INLINE bool AllHaveQuotients(std::size_t count, const cpu::TwoLevelFactors& factors) {
  auto all = hn::Eq(hn::Zero(DF()), hn::Zero(DF()));
  for (std::size_t j = 0; j < count; j += hn::Lanes(DF()))
    all = hn::And(all, HasQuotients(hn::Load(DF(), factors.amax + j)));
  return hn::AllTrue(DF(), all);
}

/// Computes the sums of the errors of the first `positions` staged items for both candidates, with
/// the operations of Nvfp4Rule::Error on magnitudes: an item's sign changes the sign of its
/// difference only. kByQuotients: 12 ops for a vector of items and a candidate.
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
    // `one` and `three_halves` are what these codes decode to.
    const auto term = [&](hn::Vec<DF> x, hn::Vec<DF> scale, hn::Vec<DF> value, hn::Vec<DF> one,
                          hn::Vec<DF> three_halves) NF_INLINE_ATTR {
      const auto product = hn::Min(hn::Mul(x, scale), hn::Set(df, kMaxValue<E2M1>));
      const auto code = RoundTo<E2M1>(product);
      auto difference = code;
      if constexpr (kDifference == Difference::kMultiplied) {
        difference = hn::Sub(hn::Mul(code, value), hn::Mul(x, encode));
      } else if constexpr (kDifference == Difference::kDivided) {
        difference = hn::Sub(decoded(hn::Mul(code, value)), x);
      } else {
        // The code is 0, a power of two, or 1.5 times one: its first mantissa bit, moved to the
        // sign, selects. The product with the power is exact.
        const auto bits = hn::BitCast(d32, code);
        const auto power = hn::BitCast(df, hn::And(bits, hn::Set(d32, kFloatInfinity)));
        const auto mantissa_to_sign = hn::BitCast(df, hn::ShiftLeft<9>(bits));
        const auto unit = hn::IfNegativeThenElse(mantissa_to_sign, three_halves, one);
        difference = hn::MulSub(power, unit, x);
      }
      return kSquares ? hn::Mul(difference, difference) : hn::Abs(difference);
    };
    const auto first_scale = hn::Load(df, candidates.of[0].scale + j);
    const auto first_value = hn::Load(df, candidates.of[0].value + j);
    const auto second_scale = hn::Load(df, candidates.of[1].scale + j);
    const auto second_value = hn::Load(df, candidates.of[1].value + j);
    const auto more = hn::Set(df, 1.5f);
    const auto first_one = decoded(first_value), second_one = decoded(second_value);
    const auto first_more = decoded(hn::Mul(first_value, more));
    const auto second_more = decoded(hn::Mul(second_value, more));
    auto first = hn::Zero(df), second = hn::Zero(df);
    for (std::size_t i = 0; i < positions; ++i) {
      const auto x = hn::Load(df, items.of[i] + j);
      first = hn::Add(first, term(x, first_scale, first_value, first_one, first_more));
      second = hn::Add(second, term(x, second_scale, second_value, second_one, second_more));
    }
    hn::Store(first, df, errors.of[0] + j);
    hn::Store(second, df, errors.of[1] + j);
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
  if (AllHaveQuotients(count, factors))
    return compute.template operator()<Difference::kByQuotients>();
  compute.template operator()<Difference::kDivided>();
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
