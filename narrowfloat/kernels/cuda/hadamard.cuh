// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// The transform as the reference computes it, for groups whose sums binary64 may not hold, and for
/// infinities and NaN. Not out of line: nvcc 13.0 does not count the local memory of a function
/// that it clones into a kernel, and the kernel then writes beyond its stack.
template <class T>
__device__ __forceinline__ void TransformAnyGroup(const float (&in)[kHadamardSize],
                                                  std::uint32_t sign_mask,
                                                  std::uint32_t (&out)[kHadamardSize]) {
  // Copies that loops may index, so that the arguments stay in registers.
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

/// Writes the items of the random Hadamard transform of 16 items, each rounded once. Sums are exact
/// in binary64 if the exponents of the terms differ by less than its precision allows.
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
  if (largest == 0xFF || (smallest < largest && largest - smallest > kMostRange)) {
    TransformAnyGroup<T>(in, sign_mask, out);
    return;
  }
  double sums[kHadamardSize];
#pragma unroll
  for (std::size_t k = 0; k < kHadamardSize; ++k)
    sums[k] = static_cast<double>((sign_mask >> k & 1u) != 0 ? -in[k] : in[k]);
#pragma unroll
  for (std::size_t half = 1; half < kHadamardSize; half *= 2) {
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      if ((k & half) != 0) continue;
      const double a = sums[k], b = sums[k + half];
      sums[k] = a + b;
      sums[k + half] = a - b;
    }
  }
  static_assert(kHadamardScale == 0.25);
#pragma unroll
  for (std::size_t j = 0; j < kHadamardSize; ++j)
    out[j] = RoundOnce<T>(sums[j] * kHadamardScale + 0.0);  // + 0.0: a sum of zeros is +0
}

}  // namespace narrowfloat::cuda
