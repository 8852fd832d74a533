// SPDX-License-Identifier: Apache-2.0
// Encodes bfloat16 to FP8 by table lookup, under power-of-two scales and under one scale for all
// items, on processors that permute the bytes of a whole vector (AVX-512 with VBMI). Compiled once
// per instruction set.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "narrowfloat/numerics/codec.h"

// Inlines lambdas into the loop around them, so that their values stay in registers.
#define NF_INLINE_ATTR HWY_ATTR __attribute__((always_inline))

namespace narrowfloat::HWY_NAMESPACE {

/// True if EncodeByTable encodes items of T to F on this instruction set.
template <FloatFormat F, class T>
inline constexpr bool kByTable =
    kBits<F> == 8 && std::is_same_v<T, BFloat16>&& HWY_TARGET == HWY_AVX3_DL;

/// Number of bits of bfloat16's mantissa below the last bit of F's mantissa.
template <FloatFormat F>
inline constexpr int kBelowMantissa = BFloat16::kMantissaBits - F::kMantissaBits;

/// Distance of F's smallest normal number from the floor at which EncodeByTable begins to count, in
/// patterns of bfloat16. M + 1 binades lie between that number and half of F's smallest number,
/// which rounds to 0. The floor is the first pattern of step 0; this half is the last one.
template <FloatFormat F>
inline constexpr std::uint32_t kStepsBelow = ((F::kMantissaBits + 1u) << BFloat16::kMantissaBits) -
                                             1u + (1u << kBelowMantissa<F>);

}  // namespace narrowfloat::HWY_NAMESPACE

// Begins here, because clang warns of a target's attribute that applies to no function.
#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Smallest multiple of a binade's distances that is above the smallest normal number's distance.
template <FloatFormat F>
inline constexpr std::uint32_t kNormalDistance = ((kStepsBelow<F> >> BFloat16::kMantissaBits) + 1)
                                                 << BFloat16::kMantissaBits;

/// Fills the tables of EncodeSteps. code_at(distance) returns F's code of an item, whose distance
/// is at most kNormalDistance + kExcesses - 1. A step is a distance without its lowest
/// kBelowMantissa bits. Requires: a step up to the smallest normal number has at most two codes.
///   excess: by the lowest bits of a normal number's distance, its step less its code
///   code:   by step, the code of its first item; 0 above the smallest normal number
///   last:   by step, the low byte of the last distance with that code; 0xFF above
template <FloatFormat F, std::size_t kExcesses, class CodeAt>
constexpr void FillSteps(const CodeAt& code_at, std::uint8_t (&excess)[kExcesses],
                         std::uint8_t (&code)[64], std::uint8_t (&last)[64]) {
  constexpr std::uint32_t kStep = 1u << kBelowMantissa<F>, kSteps = kStepsBelow<F> / kStep;
  static_assert(kStepsBelow<F> % kStep == kStep - 1 && kSteps < 64);
  for (std::uint32_t i = 0; i < kExcesses; ++i) {
    const std::uint32_t distance = kNormalDistance<F> + i;
    excess[i] = static_cast<std::uint8_t>(distance / kStep - code_at(distance));
  }
  for (std::uint32_t step = 0; step < 64; ++step) {
    const std::uint32_t first = step * kStep;
    const bool is_small = step <= kSteps;
    std::uint32_t same = 0;
    for (std::uint32_t i = 0; is_small && i < kStep; ++i)
      same += code_at(first + i) == code_at(first);
    code[step] = static_cast<std::uint8_t>(is_small ? code_at(first) : 0);
    last[step] = static_cast<std::uint8_t>(is_small ? first + same - 1 : 0xFF);
  }
}

/// Tables of EncodeSteps for power-of-two scales. Distance: an item's magnitude pattern less
/// PowerConstants::Floor, or 0 if the pattern is below the floor. Examples of E4M3:
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
  alignas(64) std::uint8_t excess[64] = {};  // by the lowest 6 bits of a distance
  alignas(64) std::uint8_t code[64] = {};
  alignas(64) std::uint8_t last[64] = {};

  constexpr StepTables() {
    const auto code_at = [](std::uint32_t distance) {
      constexpr std::uint32_t kSmallestNormal = (128u - F::kBias) << BFloat16::kMantissaBits;
      const std::uint32_t pattern = kSmallestNormal - kStepsBelow<F> + distance;
      return Encode<F, Overflow::kSaturate>(std::bit_cast<float>(pattern << 16));
    };
    FillSteps<F>(code_at, excess, code, last);
  }
};

/// Encodes finite bfloat16 by their distances from a floor (StepTables). 17 ops for 64 items.
/// Requires: no item times its scale is above F's largest number.
/// A normal number's code is its step less an excess, which the lowest bits of the distance
/// determine. A smaller number's code is that of its step's first item, or 1 more above `last`.
/// Each rule gives at most the code for the other numbers, so the larger result is the code.
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
  const hn::Full512<std::uint8_t> d8;
  const auto even_bytes = [&](hn::Vec512<std::uint16_t> first,
                              hn::Vec512<std::uint16_t> second) NF_INLINE_ATTR {
    return hn::ConcatEven(d8, hn::BitCast(d8, second), hn::BitCast(d8, first));
  };
  const auto below = even_bytes(a, b);
  const auto step = even_bytes(hn::ShiftRight<kShift>(a), hn::ShiftRight<kShift>(b));
  const auto normal = _mm512_subs_epu8(step.raw, excess_of(below).raw);
  // Lookups use the lowest 6 bits of an index.
  const auto first = _mm512_permutexvar_epi8(step.raw, code.raw);
  const auto is_past =
      _mm512_cmpgt_epu8_mask(below.raw, _mm512_permutexvar_epi8(step.raw, last.raw));
  const auto small = _mm512_mask_sub_epi8(first, is_past, first, _mm512_set1_epi8(-1));
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  const auto sign = _mm512_set1_epi8(static_cast<char>(0x80));
  return hn::Vec512<std::uint8_t>{_mm512_ternarylogic_epi32(
      _mm512_max_epu8(normal, small),
      hn::ConcatOdd(d8, hn::BitCast(d8, high), hn::BitCast(d8, low)).raw, sign, kOrAnd)};
}

/// Encodes finite bfloat16 under power-of-two scales. Requires: as EncodeSteps. kernel_unit_test
/// compares every distance.
template <FloatFormat F>
HWY_INLINE hn::Vec512<std::uint8_t> EncodeByTable(hn::Vec512<std::uint16_t> low,
                                                  hn::Vec512<std::uint16_t> high,
                                                  hn::Vec512<std::uint16_t> low_floor,
                                                  hn::Vec512<std::uint16_t> high_floor) {
  const hn::Full512<std::uint8_t> d8;
  static constexpr StepTables<F> kTables;
  const auto excess = hn::Load(d8, kTables.excess);
  const auto excess_of = [&](hn::Vec512<std::uint8_t> below) NF_INLINE_ATTR {
    return hn::Vec512<std::uint8_t>{_mm512_permutexvar_epi8(below.raw, excess.raw)};
  };
  return EncodeSteps<F>(low, high, low_floor, high_floor, excess_of, hn::Load(d8, kTables.code),
                        hn::Load(d8, kTables.last));
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
