// SPDX-License-Identifier: Apache-2.0
// Arithmetic of E2M1, for devices without conversions to it. The tests compare it with the
// reference in numerics/, on a device for all inputs.
//
// The values of E2M1 are 0, 0.5, 1, 1.5, 2, 3, 4, 6 for the codes 0 to 7: steps of 0.5 below 2, of
// 1 from there to 4, of 2 from there on.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/numerics/stochastic.h"

namespace narrowfloat::cuda {

/// Returns a * b + c, rounded once.
__device__ __forceinline__ float FusedAdd(float a, float b, float c) {
#if NF_DEVICE_ARCH > 0
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

/// Returns x limited to [0, 1]; 0 for NaN. nvcc makes it a modifier of the instruction that
/// computes x.
__device__ __forceinline__ float Saturate(float x) {
#if NF_DEVICE_ARCH > 0
  return __saturatef(x);
#else
  return !(x > 0.0f) ? 0.0f : x < 1.0f ? x : 1.0f;
#endif
}

/// Returns the bits of the smallest of three numbers that are not negative.
__device__ __forceinline__ std::uint32_t SmallestOf(float a, float b, float c) {
  const auto x = std::bit_cast<std::uint32_t>(a), y = std::bit_cast<std::uint32_t>(b),
             z = std::bit_cast<std::uint32_t>(c);
#if NF_DEVICE_ARCH > 0
  return __vimin3_u32(x, y, z);
#else
  const std::uint32_t smaller = x < y ? x : y;
  return smaller < z ? smaller : z;
#endif
}

/// Returns the bits of kRoundsToIntegers plus the code of a magnitude m. Requires: m is not NaN
/// and, unless kSaturates, less than kFirstSaturated. The code is the smallest of three numbers.
/// Each is rounded to an integer, ties to even, by the one addition that is not exact:
///
///   m          smallest number        example
///   0 to 2     2m                     1.25: 2.5 is rounded to 2, the code of 1
///   2 to 4     m + 2                  3.5: 5.5 is rounded to 6, the code of 4
///   from 4     6 + Saturate(m/2 - 2)  5: 6.5 is rounded to 6, the code of 4; 7 at most
///   4 to 7     4 + m/2                the same, in one instruction
constexpr float kRoundsToIntegers = 12582912.0f;  // 1.5 * 2^23
constexpr float kFirstSaturated = 7.0f;           // 4 + m/2 is then rounded to 8
template <bool kSaturates = true>
__device__ __forceinline__ std::uint32_t CodeE2M1(float magnitude) {
  const float below_two = FusedAdd(magnitude, 2.0f, kRoundsToIntegers);
  const float below_four = magnitude + (kRoundsToIntegers + 2.0f);
  const float from_four =
      kSaturates ? Saturate(FusedAdd(magnitude, 0.5f, -2.0f)) + (kRoundsToIntegers + 6.0f)
                 : FusedAdd(magnitude, 0.5f, kRoundsToIntegers + 4.0f);
  return SmallestOf(below_two, below_four, from_four);
}

/// Returns a word of codes with one more in its lowest 4 bits: the sign of an item and the last 3
/// bits of `code`. Adds the other bits of `code` to the codes above; JoinedCodes() subtracts them.
__device__ __forceinline__ std::uint32_t AddCode(std::uint32_t word, float item,
                                                 std::uint32_t code) {
  const auto bits = std::bit_cast<std::uint32_t>(item);
#if NF_DEVICE_ARCH > 0
  // nvcc compiles __funnelshift_l of an item that is shifted in C++ to three instructions.
  std::uint32_t with_sign;
  asm("shf.l.wrap.b32 %0, %1, %2, 1;" : "=r"(with_sign) : "r"(bits), "r"(word));
  return with_sign * 8u + code;
#else
  return (word << 1 | bits >> 31) * 8u + code;
#endif
}
/// Returns the 8 codes of a word from AddCode. Requires: `others` are the other bits of each code.
NF_HD constexpr std::uint32_t JoinedCodes(std::uint32_t word, std::uint32_t others) {
  return word - others * 0x11111111u;
}

/// Returns the E2M1 codes of item(0) * scale to item(7) * scale. Requires: scale >= 0; no product
/// is NaN.
template <class Item>
__device__ __forceinline__ std::uint32_t EncodeEight(const Item& item, float scale) {
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) word = AddCode(word, item(i), CodeE2M1(fabsf(item(i)) * scale));
  return JoinedCodes(word, std::bit_cast<std::uint32_t>(kRoundsToIntegers));
}

/// Returns twice the distance between E2M1's values at a magnitude: 1 below 2, else the largest
/// power of two that is at most the magnitude.
__device__ __forceinline__ float DoubledStep(float magnitude) {
  const auto binade =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) & kFloatInfinity);
  return fmaxf(binade, 1.0f);
}
constexpr float kStepsAreLast = 4194304.0f;  // 2^22: times DoubledStep, its last bit is one step

/// Returns a magnitude, at most 6, rounded to E2M1.
__device__ __forceinline__ float RoundToE2M1(float magnitude) {
  const float doubled = DoubledStep(magnitude);
  return FusedAdd(doubled, -kStepsAreLast, FusedAdd(doubled, kStepsAreLast, magnitude));
}

/// Returns the code of a magnitude, at most 6, rounded stochastically with a byte of a word.
__device__ __forceinline__ std::uint32_t StochasticCode(float magnitude, std::uint32_t random,
                                                        unsigned byte) {
  const float doubled = DoubledStep(magnitude);
  // Puts the byte into the last bits of 2^23. The fraction is the byte divided by 512, exact.
  const auto placed = std::bit_cast<float>(__byte_perm(random, 0x4B000000u, 0x7540u + byte));
  const float fraction = FusedAdd(placed, 1.0f / 512.0f, -8388608.0f / 512.0f);
  const float raised = FusedAdd(fraction, doubled, magnitude);
  // The sum's last bits are the number of steps of `raised`, rounded towards zero. Its exponent is
  // the number of doublings of the step; each adds 2 to the code. Adding 6 steps (3 * doubled)
  // makes the rest of both a multiple of 8.
  constexpr float kStepsAndSix = kStepsAreLast + 3.0f;
#if NF_DEVICE_ARCH > 0
  const auto sum = std::bit_cast<std::uint32_t>(__fmaf_rz(doubled, kStepsAndSix, raised));
#else
  const auto sum = std::bit_cast<std::uint32_t>(doubled * kStepsAndSix) +
                   static_cast<std::uint32_t>(raised / (doubled * 0.5f));
#endif
  return (sum + (sum >> 22)) & 7u;
}

/// Encodes as EncodeEight, with stochastic rounding by 8 random bytes.
template <class Item>
__device__ __forceinline__ std::uint32_t EncodeEightStochastic(const Item& item, float scale,
                                                               std::uint32_t low_random,
                                                               std::uint32_t high_random) {
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    const float magnitude = fminf(fabsf(item(i)) * scale, kMaxValue<E2M1>);
    word = AddCode(
        word, item(i),
        StochasticCode(magnitude, i < 4 ? low_random : high_random, static_cast<unsigned>(i % 4)));
  }
  return word;
}

/// Returns x / divisor, rounded once, from reciprocal = 1 / divisor, rounded once. Requires: x is 0
/// or from 2^-90 to 2^92; divisor is one of NVFP4's divisors. For these, the tests compare every
/// mantissa of x.
__device__ __forceinline__ float QuotientBy(float x, float divisor, float reciprocal) {
  const float near = x * reciprocal;
  return FusedAdd(FusedAdd(-near, divisor, x), reciprocal, near);
}

// Rarely called functions are out of line. They have no array in local memory: see
// hadamard.cuh.

/// Eight numbers, passed in registers.
struct EightFloats {
  float4 low, high;

  template <class Item>
  static __device__ __forceinline__ EightFloats Of(const Item& item) {
    return {make_float4(item(0), item(1), item(2), item(3)),
            make_float4(item(4), item(5), item(6), item(7))};
  }
};

/// Returns the codes of 8 scaled items that may be NaN or infinite.
[[maybe_unused]] static __device__ NF_NOINLINE std::uint32_t EncodeEightSpecial(EightFloats x) {
  const auto four = [](const float4& v) {
    return Encode<E2M1>(v.x) | Encode<E2M1>(v.y) << 4 | Encode<E2M1>(v.z) << 8 |
           Encode<E2M1>(v.w) << 12;
  };
  return four(x.low) | four(x.high) << 16;
}
[[maybe_unused]] static __device__ NF_NOINLINE std::uint32_t EncodeEightStochasticSpecial(
    EightFloats x, std::uint32_t low_random, std::uint32_t high_random) {
  const auto four = [](const float4& v, std::uint32_t random) {
    const auto one = [&](float item, int i) {
      return EncodeStochastic(item, static_cast<std::uint8_t>(random >> (8 * i))) << (4 * i);
    };
    return one(v.x, 0) | one(v.y, 1) | one(v.z, 2) | one(v.w, 3);
  };
  return four(x.low, low_random) | four(x.high, high_random) << 16;
}

}  // namespace narrowfloat::cuda
