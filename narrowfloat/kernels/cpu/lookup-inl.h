// SPDX-License-Identifier: Apache-2.0
// Encodes bfloat16 to FP8 by table lookup, under power-of-two scales and under one scale for all
// items, on processors that permute the bytes of a whole vector (AVX-512 with VBMI). Compiled once
// per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_LOOKUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_LOOKUP_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_LOOKUP_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_LOOKUP_INL_H_
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "narrowfloat/numerics/codec.h"

// Inlines lambdas into the loop around them, so that registers stay loaded.
#undef NF_INLINE_ATTR
#define NF_INLINE_ATTR HWY_ATTR __attribute__((always_inline))

#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {

/// True if EncodeByTable encodes items of T to F on this instruction set.
template <FloatFormat F, class T>
inline constexpr bool kByTable =
    kBits<F> == 8 && std::is_same_v<T, BFloat16>&& HWY_TARGET == HWY_AVX3_DL;

/// Bits of bfloat16's mantissa below the last bit of F's.
template <FloatFormat F>
inline constexpr int kBelowMantissa = BFloat16::kMantissaBits - F::kMantissaBits;

/// Distance from where EncodeByTable counts to F's smallest normal number, as patterns of bfloat16:
/// the octaves down to half of F's smallest number, which rounds to 0, and on to the first of the
/// patterns that have the same step as it, of which it is the last.
template <FloatFormat F>
inline constexpr std::uint32_t kStepsBelow = ((F::kMantissaBits + 1u) << BFloat16::kMantissaBits) -
                                             1u + (1u << kBelowMantissa<F>);

}  // namespace narrowfloat::HWY_NAMESPACE
#endif

// clang warns of a target's attribute that no function takes, so that it begins here.
#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The tables of EncodeSteps for power-of-two scales.
/// Distance: an item's magnitude pattern less PowerConstants::Floor, or 0 if it is below that.
/// Step: the distance without its lowest kBelowMantissa bits. Some of E4M3's:
///
///   distance   value                    step   code
///   15         2^-10, a tie             0      0
///   16         the next one             1      1
///   206        below 1.5 * 2^-9         12     1
///   207        1.5 * 2^-9, a tie        12     2
///   527        2^-6, smallest normal    32     8
///   535        1.0625 * 2^-6, a tie     33     8 = 33 - 25
///   536        the next one             33     9 = 33 - 24
template <FloatFormat F>
struct StepTables {
  alignas(64) std::uint8_t excess[64] = {};  // by a distance's lowest 6 bits: step less normal code
  alignas(64) std::uint8_t code[64] = {};    // by step: of its first item, 0 above smallest normal
  alignas(64) std::uint8_t last[64] = {};    // by step: distance of the last item with that code

  constexpr StepTables() {
    constexpr std::uint32_t kNormal = 8u << BFloat16::kMantissaBits;  // above the smallest one
    for (std::uint32_t i = 0; i < 64; ++i) {
      excess[i] = static_cast<std::uint8_t>(((kNormal + i) >> kShift) - CodeAt(kNormal + i));
    }
    for (std::uint32_t step = 0; step < 64; ++step) {
      last[step] = 0xFF;
      if (step > kSteps) continue;
      std::uint32_t distance = ((step + 1u) << kShift) - 1u;
      code[step] = static_cast<std::uint8_t>(CodeAt(step << kShift));
      while (CodeAt(distance) != code[step]) --distance;
      last[step] = static_cast<std::uint8_t>(distance);
    }
  }

  /// Returns F's code of an item at that distance.
  static constexpr std::uint32_t CodeAt(std::uint32_t distance) {
    if (distance <= kLastZero) return 0;
    return Encode<F, Overflow::kSaturate>(
        std::bit_cast<float>(kHalfOfSmallest + ((distance - kLastZero) << 16)));
  }

  /// Checks that EncodeByTable's steps give CodeAt for every distance up to F's largest number's.
  constexpr bool AreExact() const {
    constexpr std::uint32_t kLargest = std::bit_cast<std::uint32_t>(kMaxValue<F>);
    for (std::uint32_t d = 0; d <= kLastZero + ((kLargest - kHalfOfSmallest) >> 16); ++d) {
      const std::uint32_t step = d >> kShift, below = d & 0xFFu;
      const std::uint32_t normal = step - std::min<std::uint32_t>(step, excess[d % 64]);
      const std::uint32_t small = code[step % 64] + (below > last[step % 64] ? 1u : 0u);
      if (step > 0xFF || std::max(normal, small) != CodeAt(d)) return false;
    }
    return true;
  }

 private:
  static constexpr int kShift = kBelowMantissa<F>;
  static constexpr std::uint32_t kSteps = kStepsBelow<F> >> kShift;  // of the smallest normal one
  static constexpr std::uint32_t kLastZero = (1u << kShift) - 1u;
  static constexpr std::uint32_t kHalfOfSmallest =
      std::bit_cast<std::uint32_t>(narrowfloat::Decode<F>(1) * 0.5f);
};

/// Joins the even bytes of two vectors; with kOdd, the odd ones. 1 op.
template <bool kOdd>
HWY_INLINE hn::Vec512<std::uint8_t> JoinBytes(hn::Vec512<std::uint16_t> low,
                                              hn::Vec512<std::uint16_t> high) {
  alignas(64) static constexpr auto kOrder = [] {
    std::array<std::uint8_t, 64> order{};
    for (std::size_t i = 0; i < 64; ++i) order[i] = static_cast<std::uint8_t>(2 * i + kOdd);
    return order;
  }();
  const auto order = hn::Load(hn::Full512<std::uint8_t>(), kOrder.data());
  return hn::Vec512<std::uint8_t>{_mm512_permutex2var_epi8(low.raw, order.raw, high.raw)};
}

/// Encodes finite bfloat16 by their distances from a floor (StepTables). 17 ops for 64 items.
/// Requires: no item times its scale is above F's largest number.
/// A normal code is the step less an excess, which the lowest bits of the distance determine. A
/// smaller code depends on the step, and is 1 more past a bound within it. Below the smallest
/// normal number the first rule gives less, above it the second: the larger of both is the code.
/// excess_of(below) returns the excesses of the distances' low bytes; `code` and `last` are
/// StepTables' tables of 64 steps.
template <FloatFormat F, class ExcessOf>
HWY_INLINE hn::Vec512<std::uint8_t> EncodeSteps(
    hn::Vec512<std::uint16_t> low, hn::Vec512<std::uint16_t> high,
    hn::Vec512<std::uint16_t> low_floor, hn::Vec512<std::uint16_t> high_floor,
    const ExcessOf& excess_of, hn::Vec512<std::uint8_t> code, hn::Vec512<std::uint8_t> last) {
  const hn::Full512<std::uint16_t> d16;
  const auto distance = [&](hn::Vec512<std::uint16_t> items,
                            hn::Vec512<std::uint16_t> floor) NF_INLINE_ATTR {
    const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
    return hn::SaturatedSub(magnitude, floor);
  };
  const auto a = distance(low, low_floor), b = distance(high, high_floor);
  constexpr int kShift = kBelowMantissa<F>;
  const auto below = JoinBytes<false>(a, b);
  const auto step = JoinBytes<false>(hn::ShiftRight<kShift>(a), hn::ShiftRight<kShift>(b));
  const auto normal = _mm512_subs_epu8(step.raw, excess_of(below).raw);
  // Lookups use the lowest 6 bits of an index.
  const auto first = _mm512_permutexvar_epi8(step.raw, code.raw);
  const auto is_past =
      _mm512_cmpgt_epu8_mask(below.raw, _mm512_permutexvar_epi8(step.raw, last.raw));
  const auto small = _mm512_mask_sub_epi8(first, is_past, first, _mm512_set1_epi8(-1));
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  const auto sign = _mm512_set1_epi8(static_cast<char>(0x80));
  return hn::Vec512<std::uint8_t>{_mm512_ternarylogic_epi32(
      _mm512_max_epu8(normal, small), JoinBytes<true>(low, high).raw, sign, kOrAnd)};
}

/// Encodes finite bfloat16 under power-of-two scales. Requires: as EncodeSteps.
/// StepTables::AreExact proves this for every distance.
template <FloatFormat F>
HWY_INLINE hn::Vec512<std::uint8_t> EncodeByTable(hn::Vec512<std::uint16_t> low,
                                                  hn::Vec512<std::uint16_t> high,
                                                  hn::Vec512<std::uint16_t> low_floor,
                                                  hn::Vec512<std::uint16_t> high_floor) {
  const hn::Full512<std::uint8_t> d8;
  static constexpr StepTables<F> kTables;
  static_assert(kTables.AreExact());
  const auto excess = hn::Load(d8, kTables.excess);
  const auto excess_of = [&](hn::Vec512<std::uint8_t> below) NF_INLINE_ATTR {
    return hn::Vec512<std::uint8_t>{_mm512_permutexvar_epi8(below.raw, excess.raw)};
  };
  return EncodeSteps<F>(low, high, low_floor, high_floor, excess_of, hn::Load(d8, kTables.code),
                        hn::Load(d8, kTables.last));
}

/// Provider of EncodeRun for one scale of any mantissa, with the tables that TabulateUniform filled
/// for it. The product of a normal item and a normal scale has the same mantissa in every octave of
/// items, so that 128 excesses serve all octaves.
template <FloatFormat F>
struct UniformSteps {
  hn::Vec512<std::uint8_t> lower_excess, upper_excess, code, last;
  hn::Vec512<std::uint16_t> floor;

  HWY_INLINE hn::Vec512<std::uint8_t> Encode(hn::Vec512<std::uint16_t> low,
                                             hn::Vec512<std::uint16_t> high) const {
    const auto lower = lower_excess, upper = upper_excess;
    const auto excess_of = [=](hn::Vec512<std::uint8_t> below) NF_INLINE_ATTR {
      return hn::Vec512<std::uint8_t>{_mm512_permutex2var_epi8(lower.raw, below.raw, upper.raw)};
    };
    return EncodeSteps<F>(low, high, floor, floor, excess_of, code, last);
  }
};

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
