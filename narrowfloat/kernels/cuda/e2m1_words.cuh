// SPDX-License-Identifier: Apache-2.0
// Encodes words of bfloat16 items, for devices of compute capability 9.0 and later. All functions
// require: no item is NaN or infinite, and the magnitudes of the products with scales are less than
// kFirstSaturated. The tests compare them with the reference.
#pragma once

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "narrowfloat/kernels/cuda/e2m1.cuh"

namespace narrowfloat::cuda {

/// True if kernels encode items of T by the functions of this file: bfloat16, on devices of compute
/// capability 9.0 or later and in the emulation.
template <class T>
inline constexpr bool kEncodesWords = std::is_same_v<T, BFloat16> &&
                                      (NF_DEVICE_ARCH == 0 || NF_DEVICE_ARCH >= 900);

/// Returns the codes of 8 magnitudes with the signs of their items. Item 2k has its sign in the
/// upper bit of byte k of `even`, item 2k + 1 in that of `odd`. Bit 3 of each code is ignored.
__device__ __forceinline__ std::uint32_t WithSigns(std::uint32_t codes, std::uint32_t even,
                                                   std::uint32_t odd) {
  const std::uint32_t signs = (even >> 4 & 0x08080808u) | (odd & ~0x08080808u);
  return (codes & 0x77777777u) | (signs & 0x88888888u);
}

/// Gathers the upper bytes, which have the signs, of the low and of the high items of words 0,
/// kStep, 2 * kStep and 3 * kStep, into `low_items` and `high_items`.
template <int kStep>
__device__ __forceinline__ void GatherSigns(const std::uint32_t* words, std::uint32_t& low_items,
                                            std::uint32_t& high_items) {
  const std::uint32_t first = __byte_perm(words[0], words[kStep], 0x7531);
  const std::uint32_t second = __byte_perm(words[kStep * 2], words[kStep * 3], 0x7531);
  low_items = __byte_perm(first, second, 0x6420);
  high_items = __byte_perm(first, second, 0x7531);
}

/// Joins 8 codes. Each may have a multiple of 2^22 added to it.
__device__ __forceinline__ std::uint32_t JoinCodes(const std::uint32_t (&codes)[8]) {
  const std::uint32_t low = codes[0] + codes[1] * 16u + (codes[2] + codes[3] * 16u) * 256u;
  const std::uint32_t high = codes[4] + codes[5] * 16u + (codes[6] + codes[7] * 16u) * 256u;
  return __byte_perm(low, high, 0x5410);
}

/// Returns the codes of a word's items, added to kRoundsPair. The items are scaled by powers of
/// two; the halves of `scale` are their bits. Requires: the magnitudes of the products are at
/// most 6. See CodeE2M1: bfloat16 holds the products exactly, unless they are far below the first
/// step.
constexpr std::uint32_t kRoundsPair = 0x43404340u;  // 1.5 * 2^7 in each half
__device__ __forceinline__ std::uint32_t CodePair(std::uint32_t word, std::uint32_t scale) {
#if NF_DEVICE_ARCH >= 900
  std::uint32_t product, below_two, below_four, from_four;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(word & 0x7FFF7FFFu), "r"(scale));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(below_two)
      : "r"(product), "r"(0x40004000u), "r"(kRoundsPair));
  asm("add.rn.bf16x2 %0, %1, %2;"
      : "=r"(below_four)
      : "r"(product), "r"(kRoundsPair + 0x00020002u));
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(from_four)
      : "r"(product), "r"(0x3F003F00u), "r"(kRoundsPair + 0x00040004u));
  return __vimin3_u16x2(below_two, below_four, from_four);
#else
  const auto code = [](std::uint32_t item, std::uint32_t power) {
    return CodeE2M1(fabsf(Widen<BFloat16>(item)) * Widen<BFloat16>(power)) & 7u;
  };
  return kRoundsPair + code(word & 0xFFFFu, scale & 0xFFFFu) +
         (code(word >> 16, scale >> 16) << 16);
#endif
}

/// Encodes 16 items of a row, multiplied by a scale.
__device__ __forceinline__ void EncodeRowWords(const std::uint32_t (&words)[8], float scale,
                                               std::uint32_t (&codes)[2]) {
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    std::uint32_t of_items[8];
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const std::uint32_t word = words[w * 4 + i / 2];
      of_items[i] = CodeE2M1<false>(fabsf(Widen<BFloat16>(word & 0xFFFFu)) * scale);
      of_items[i + 1] = CodeE2M1<false>(fabsf(Widen<BFloat16>(word >> 16)) * scale);
    }
    std::uint32_t even, odd;
    GatherSigns<1>(words + w * 4, even, odd);
    codes[w] = WithSigns(JoinCodes(of_items), even, odd);
  }
}

/// Encodes the items of 16 rows of two columns, multiplied by their scales.
__device__ __forceinline__ void EncodeColumnWords(const std::uint32_t* words,
                                                  const float (&scales)[2],
                                                  std::uint32_t (&codes)[2][2]) {
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    std::uint32_t of_items[2][8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t word = words[w * 8 + i];
      of_items[0][i] = CodeE2M1<false>(fabsf(Widen<BFloat16>(word & 0xFFFFu)) * scales[0]);
      of_items[1][i] = CodeE2M1<false>(fabsf(Widen<BFloat16>(word >> 16)) * scales[1]);
    }
    std::uint32_t even[2], odd[2];
    GatherSigns<2>(words + w * 8, even[0], even[1]);
    GatherSigns<2>(words + w * 8 + 1, odd[0], odd[1]);
#pragma unroll
    for (int column = 0; column < 2; ++column)
      codes[column][w] = WithSigns(JoinCodes(of_items[column]), even[column], odd[column]);
  }
}

/// Returns a power of two as bfloat16, in both halves of a word.
__device__ __forceinline__ std::uint32_t PowerPair(float power) {
  const auto bits = std::bit_cast<std::uint32_t>(power);
  return bits | bits >> 16;
}

/// Encodes as EncodeRowWords and EncodeColumnWords, for scales that are powers of two and give
/// products of at most 6.
__device__ __forceinline__ void EncodeRowWordsByPower(const std::uint32_t (&words)[8], float power,
                                                      std::uint32_t (&codes)[2]) {
  const std::uint32_t scale = PowerPair(power);
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    std::uint32_t bytes[4];  // the lowest byte of each has two codes; it has 0x44 added
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t pair = CodePair(words[w * 4 + i], scale);
      bytes[i] = pair + (pair >> 12);
    }
    const std::uint32_t joined = __byte_perm(__byte_perm(bytes[0], bytes[1], 0x0040),
                                             __byte_perm(bytes[2], bytes[3], 0x0040), 0x5410);
    std::uint32_t even, odd;
    GatherSigns<1>(words + w * 4, even, odd);
    codes[w] = WithSigns(joined - 0x44444444u, even, odd);
  }
}
__device__ __forceinline__ void EncodeColumnWordsByPower(const std::uint32_t* words,
                                                         const float (&powers)[2],
                                                         std::uint32_t (&codes)[2][2]) {
  const std::uint32_t scale = __byte_perm(std::bit_cast<std::uint32_t>(powers[0]),
                                          std::bit_cast<std::uint32_t>(powers[1]), 0x7632);
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    std::uint32_t rows[4];  // bytes 0 and 2 have two codes each, with 0x40 and 0x44 added
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows[i] =
          CodePair(words[w * 8 + i * 2], scale) + CodePair(words[w * 8 + i * 2 + 1], scale) * 16u;
    const std::uint32_t low = __byte_perm(rows[0], rows[1], 0x6240);
    const std::uint32_t high = __byte_perm(rows[2], rows[3], 0x6240);
    const std::uint32_t joined[2] = {__byte_perm(low, high, 0x5410) - 0x40404040u,
                                     __byte_perm(low, high, 0x7632) - 0x44444444u};
    std::uint32_t even[2], odd[2];
    GatherSigns<2>(words + w * 8, even[0], even[1]);
    GatherSigns<2>(words + w * 8 + 1, odd[0], odd[1]);
#pragma unroll
    for (int column = 0; column < 2; ++column)
      codes[column][w] = WithSigns(joined[column], even[column], odd[column]);
  }
}

}  // namespace narrowfloat::cuda
