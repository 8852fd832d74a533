// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/kernels/cuda/e2m1.cuh"
#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/numerics/exact_sum.h"
#include "narrowfloat/numerics/hadamard.h"

namespace narrowfloat::cuda {

/// Rounds a binary64 number to an item of T once.
template <class T>
__device__ __forceinline__ std::uint32_t RoundOnce(double value) {
  if constexpr (kItemSize<T> == 4) {
    return std::bit_cast<std::uint32_t>(CanonicalNan(static_cast<float>(value)));
  } else {
#if NF_DEVICE_ARCH > 0
    const float towards_zero = __double2float_rz(value);
    const bool inexact =
        static_cast<double>(towards_zero) < value || static_cast<double>(towards_zero) > value;
    return Narrow<T>(std::bit_cast<float>(std::bit_cast<std::uint32_t>(towards_zero) |
                                          static_cast<std::uint32_t>(inexact)));
#else
    return Narrow<T>(RoundToOdd(value));
#endif
  }
}

/// Computes the transform as the reference does, for groups that the functions below do not
/// support, and for infinities and NaN. Not out of line: nvcc 13.0 does not count the local memory
/// of a function that it clones into a kernel, and the kernel then writes beyond its stack.
template <class T>
__device__ __forceinline__ void TransformAnyGroup(const float (&in)[kHadamardSize],
                                                  std::uint32_t sign_mask,
                                                  std::uint32_t (&out)[kHadamardSize]) {
  // Copies for loops with variable indices, so that the arguments stay in registers.
  float terms[kHadamardSize];
  std::uint32_t items[kHadamardSize];
#pragma unroll
  for (std::size_t k = 0; k < kHadamardSize; ++k) terms[k] = in[k];
#pragma unroll 1
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    ExactSum sum;
    double special = 0.0;
    bool finite = true;
#pragma unroll 1
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      const float term = HadamardNegates(k, j, sign_mask) ? -terms[k] : terms[k];
      if (Magnitude(term) <= kLargestFloat) {
        sum.Add(term);
      } else {
        finite = false;
        special += static_cast<double>(term);
      }
    }
    items[j] = RoundOnce<T>(finite ? sum.RoundToOdd(-2) : special);
  }
#pragma unroll
  for (std::size_t j = 0; j < kHadamardSize; ++j) out[j] = items[j];
}

/// Replaces 16 numbers by the sums of the transform, without its scale.
template <class Number>
__device__ __forceinline__ void AddByHalves(Number (&sums)[kHadamardSize]) {
#pragma unroll
  for (std::size_t half = 1; half < kHadamardSize; half *= 2) {
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      if ((k & half) != 0) continue;
      const Number a = sums[k], b = sums[k + half];
      sums[k] = a + b;
      sums[k + half] = a - b;
    }
  }
}

/// Bounds the error of a quarter of one of AddByHalves' sums: it is at most this number times the
/// largest magnitude of the terms. With terms below 2^(e+1) and p bits of precision, the roundings
/// of the four additions are at most 2^(e+1-p), 2^(e+2-p), 2^(e+3-p) and 2^(e+4-p). Each addition
/// doubles the error of the additions before: 2^(e+6-p) in all, and a quarter is 2^(e+4-p). The
/// bound is twice that, to include the rounding of the quarter plus or minus the bound, which is at
/// most 2^(e+2-p). If the quarter plus the bound and the quarter minus it round to the same item,
/// the exact quarter rounds to it too.
template <class Number>
constexpr Number kSumBound = sizeof(Number) == 4 ? Number{0x1p-19f} : Number{0x1p-48};

/// Writes the items of the random Hadamard transform of 16 items, each rounded once. Sums are exact
/// in binary64 if the range of the terms' exponents is small enough.
template <class T>
__device__ __forceinline__ void TransformGroup(const float (&in)[kHadamardSize],
                                               std::uint32_t sign_mask,
                                               std::uint32_t (&out)[kHadamardSize]) {
  constexpr int kMantissaBits = [] {
    if constexpr (kItemSize<T> == 4) {
      return 23;
    } else {
      return T::kMantissaBits;
    }
  }();
  // A term has kMantissaBits + 1 bits, and the sum of 16 terms needs 4 more.
  constexpr std::uint32_t kMostRange = 53 - 5 - kMantissaBits;
  std::uint32_t largest = 0, smallest = 0xFF;
#pragma unroll
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(Magnitude(in[k]));
    const std::uint32_t field = magnitude >> 23;
    largest = field > largest ? field : largest;
    // Binary32's subnormals have the exponent of its smallest normal number.
    const std::uint32_t low = magnitude == 0 ? 0xFFu : field == 0 ? 1u : field;
    smallest = low < smallest ? low : smallest;
  }
  if (largest == 0xFF) return TransformAnyGroup<T>(in, sign_mask, out);
  double sums[kHadamardSize];
#pragma unroll
  for (std::size_t k = 0; k < kHadamardSize; ++k)
    sums[k] = static_cast<double>((sign_mask >> k & 1u) != 0 ? -in[k] : in[k]);
  AddByHalves(sums);
  static_assert(kHadamardScale == 0.25);
  if (smallest < largest && largest - smallest > kMostRange) {
    // The power of two above all terms: 897 changes binary32's bias to binary64's, and adds 1.
    const double bound =
        kSumBound<double> * std::bit_cast<double>(static_cast<std::uint64_t>(largest + 897u) << 52);
    bool differs = false;
#pragma unroll
    for (std::size_t j = 0; j < kHadamardSize; ++j) {
      const double quarter = sums[j] * kHadamardScale;
      differs |= RoundOnce<T>(quarter - bound) != RoundOnce<T>(quarter + bound);
    }
    if (differs) return TransformAnyGroup<T>(in, sign_mask, out);
  }
#pragma unroll
  for (std::size_t j = 0; j < kHadamardSize; ++j)
    out[j] = RoundOnce<T>(sums[j] * kHadamardScale + 0.0);  // + 0.0: a sum of zeros is +0
}

template <class T>
constexpr std::size_t kItemsOfWord = 4 / kItemSize<T>;

/// Returns, in each half of a word, the larger one of two unsigned numbers.
__device__ __forceinline__ std::uint32_t LargerHalves(std::uint32_t a, std::uint32_t b) {
#if NF_DEVICE_ARCH > 0
  return __vmaxu2(a, b);
#else
  const std::uint32_t low = (a & 0xFFFFu) > (b & 0xFFFFu) ? a : b;
  return (low & 0xFFFFu) | ((a >> 16 > b >> 16 ? a : b) & 0xFFFF0000u);
#endif
}
/// Returns, in each half, the smaller of a - 1 and b; 0 - 1 is 0xFFFF.
__device__ __forceinline__ std::uint32_t SmallerPreceding(std::uint32_t a, std::uint32_t b) {
#if NF_DEVICE_ARCH > 0
  return __viaddmin_u16x2(a, 0xFFFFFFFFu, b);
#else
  const auto smaller = [](std::uint32_t x, std::uint32_t y) {
    const std::uint32_t before = (x - 1u) & 0xFFFFu;
    return before < y ? before : y;
  };
  return smaller(a & 0xFFFFu, b & 0xFFFFu) | smaller(a >> 16, b >> 16) << 16;
#endif
}

/// The largest exponent field of items of a 16-bit type with finite sums of 16 in binary32: a sum
/// is up to 16 times as large as an item.
template <class T>
constexpr std::uint32_t kMostSummedField = T::kBias == 127 ? 254u - 4u : T::kMaxCode;

/// Returns true if binary32 holds every partial sum of 16 items of a 16-bit type exactly, and a
/// quarter of it. `largest` has the bits of their largest magnitude, `preceding` the bits of the
/// smallest nonzero one, minus 1.
template <class T>
__device__ __forceinline__ bool SumsFitBinary32(std::uint32_t largest, std::uint32_t preceding) {
  // As in TransformGroup: 24 bits minus a term's bits, minus 4.
  constexpr std::uint32_t kMostRange = 24 - 5 - T::kMantissaBits;
  // Sums are multiples of the items' last bits. TransformGroup handles sums with a possibly
  // subnormal quarter, so that results do not depend on a device's conversion of subnormal numbers.
  constexpr std::uint32_t kLeastField = T::kBias == 127 ? T::kMantissaBits + 3u : 1u;
  const std::uint32_t high = largest >> T::kMantissaBits;
  const std::uint32_t low = ((preceding + 1u) & 0xFFFFu) >> T::kMantissaBits;
  if (largest == 0) return true;
  return largest <= T::kMaxCode && high <= kMostSummedField<T> && low >= kLeastField &&
         high - low <= kMostRange;
}

/// Returns true if kSumBound times the largest of 16 items is a normal number of binary32, and
/// their sums are finite. `largest` has the bits of that item.
template <class T>
__device__ __forceinline__ bool HasSumBound(std::uint32_t largest) {
  constexpr std::uint32_t kLeastField = T::kBias == 127 ? 1u + 19u : 1u;  // kSumBound is 2^-19
  const std::uint32_t field = largest >> T::kMantissaBits;
  return largest <= T::kMaxCode && field >= kLeastField && field <= kMostSummedField<T>;
}

/// Replaces the 16 items of the one or two columns of a word per row by their transforms. Adds in
/// binary32 if that is exact, or if its errors do not change the rounded sums.
template <class T>
__device__ __forceinline__ void TransformWords(std::uint32_t (&words)[kHadamardSize],
                                               std::uint32_t sign_mask) {
  if constexpr (kItemSize<T> == 4) {
    float group[kHadamardSize];
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) group[k] = std::bit_cast<float>(words[k]);
    TransformGroup<T>(group, sign_mask, words);
  } else {
    std::uint32_t largest = 0, preceding = 0xFFFFFFFFu;
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      const std::uint32_t magnitudes = words[k] & 0x7FFF7FFFu;
      largest = LargerHalves(largest, magnitudes);
      preceding = SmallerPreceding(magnitudes, preceding);
    }
    const std::uint32_t largest_of[2] = {largest & 0xFFFFu, largest >> 16};
    const bool fits[2] = {SumsFitBinary32<T>(largest_of[0], preceding & 0xFFFFu),
                          SumsFitBinary32<T>(largest_of[1], preceding >> 16)};
    if ((fits[0] || HasSumBound<T>(largest_of[0])) && (fits[1] || HasSumBound<T>(largest_of[1]))) {
      float sums[2][kHadamardSize];
#pragma unroll
      for (std::size_t k = 0; k < kHadamardSize; ++k) {
        const std::uint32_t signed_items = words[k] ^ (sign_mask >> k & 1u) * 0x80008000u;
        sums[0][k] = Widen<T>(signed_items & 0xFFFFu);
        sums[1][k] = Widen<T>(signed_items >> 16);
      }
      AddByHalves(sums[0]);
      AddByHalves(sums[1]);
      constexpr auto kScale = static_cast<float>(kHadamardScale);
      // Returns the items of two quarters plus `first` and `second`.
      const auto items = [&](std::size_t j, float first, float second) {
        return NarrowPair<T>(FusedAdd(sums[0][j], kScale, first),
                             FusedAdd(sums[1][j], kScale, second));
      };
      bool differs = false;
      if (!fits[0] || !fits[1]) {
        float bounds[2];
#pragma unroll
        for (int column = 0; column < 2; ++column)
          bounds[column] = fits[column] ? 0.0f : Widen<T>(largest_of[column]) * kSumBound<float>;
#pragma unroll
        for (std::size_t j = 0; j < kHadamardSize; ++j)
          differs |= items(j, -bounds[0], -bounds[1]) != items(j, bounds[0], bounds[1]);
      }
      if (!differs) {
#pragma unroll
        for (std::size_t j = 0; j < kHadamardSize; ++j) words[j] = items(j, 0.0f, 0.0f);
        return;
      }
    }
    // Shifts each column out at the low end, and its transform in at the high end.
#pragma unroll 1
    for (int column = 0; column < 2; ++column) {
      float group[kHadamardSize];
      std::uint32_t items[kHadamardSize];
#pragma unroll
      for (std::size_t k = 0; k < kHadamardSize; ++k) group[k] = Widen<T>(words[k] & 0xFFFFu);
      TransformGroup<T>(group, sign_mask, items);
#pragma unroll
      for (std::size_t k = 0; k < kHadamardSize; ++k) words[k] = words[k] >> 16 | items[k] << 16;
    }
  }
}

}  // namespace narrowfloat::cuda
