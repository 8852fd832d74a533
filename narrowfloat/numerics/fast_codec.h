// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "narrowfloat/numerics/codec.h"

namespace narrowfloat {

/// Returns Encode<F>(x). In device code of compute capability 8.9 or later, 8-bit formats take the
/// hardware's conversion: the instruction of EncodePair in kernels/cuda/items.cuh, which
/// tests/cuda/cuda_codec_test.cc compares for all inputs.
template <FloatFormat F>
NF_HD constexpr std::uint32_t EncodeFast(float x) noexcept {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (kBits<F> == 8) {
    if (!std::is_constant_evaluated()) {
      std::uint16_t codes = 0;
      if constexpr (F::kMantissaBits == 3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
      } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
      }
      return codes;
    }
  }
#endif
  return Encode<F>(x);
}

/// Returns Decode<F>(code). In device code, formats of at most 8 bits take the steps of DecodeItem
/// in kernels/cuda/items.cuh, which the same test compares for all codes.
template <FloatFormat F>
NF_HD constexpr float DecodeFast(std::uint32_t code) noexcept {
#if defined(__CUDA_ARCH__)
  if constexpr (kBits<F> <= 8) {
    // Places the bits in a binary32 number, whose exponent a product then corrects; subnormals
    // become normal that way.
    constexpr float kPower = std::bit_cast<float>(static_cast<std::uint32_t>(254 - F::kBias) << 23);
    const std::uint32_t magnitude = code & (kSignCode<F> - 1u);
    const std::uint32_t sign = (code & kSignCode<F>) << (32 - kBits<F>);
    const float value = std::bit_cast<float>(sign | magnitude << (23 - F::kMantissaBits)) * kPower;
    if constexpr (F::kMaxCode == kSignCode<F> - 1u) return value;
    if (magnitude <= F::kMaxCode) return value;
  }
#endif
  return Decode<F>(code);
}

}  // namespace narrowfloat
