// SPDX-License-Identifier: Apache-2.0
// Conversions of narrow formats that take fewer instructions in device code than the reference
// (codec.h). tests/cuda/cuda_codec_test.cc compares both for all inputs.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "narrowfloat/numerics/codec.h"

namespace narrowfloat {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
/// Returns the codes of two items of an 8-bit format by the hardware's conversion, `low` in the low
/// byte.
template <FloatFormat F>
__device__ __forceinline__ std::uint32_t EncodePairByHardware(float low, float high) {
  std::uint16_t codes;
  if constexpr (F::kMantissaBits == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  }
  return codes;
}
#endif

/// Returns Encode<F>(x). On devices of compute capability 8.9 or later, uses the hardware's
/// conversion for 8-bit formats.
template <FloatFormat F>
NF_HD constexpr std::uint32_t EncodeFast(float x) noexcept {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  if constexpr (kBits<F> == 8) {
    if (!std::is_constant_evaluated()) return EncodePairByHardware<F>(x, 0.0f);
  }
#endif
  return Encode<F>(x);
}

/// Returns Decode<F>(code), for a format of at most 8 bits. Places the code's bits in a binary32
/// number and multiplies by a power of two. This corrects the exponent and normalizes subnormals.
template <FloatFormat F>
NF_HD constexpr float DecodeByProduct(std::uint32_t code) noexcept {
  static_assert(kBits<F> <= 8);
  constexpr float kPower = std::bit_cast<float>(static_cast<std::uint32_t>(254 - F::kBias) << 23);
  const std::uint32_t magnitude = code & (kSignCode<F> - 1u);
  const std::uint32_t sign = (code & kSignCode<F>) << (32 - kBits<F>);
  const float value = std::bit_cast<float>(sign | magnitude << (23 - F::kMantissaBits)) * kPower;
  if constexpr (F::kMaxCode != kSignCode<F> - 1u) {
    if (magnitude > F::kMaxCode) return Decode<F>(code);
  }
  return value;
}

/// Returns Decode<F>(code), for a format of at most 8 bits; a NaN has any payload. Device code uses
/// the hardware's conversion for E4M3 from compute capability 8.9 on, else DecodeByProduct.
template <FloatFormat F>
NF_HD constexpr float DecodeFast(std::uint32_t code) noexcept {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 890
  if constexpr (kBits<F> == 8 && F::kMantissaBits == 3) {
    if (!std::is_constant_evaluated()) {
      float value;
      asm("{\n\t.reg .b32 halves;\n\t.reg .b16 low, high;\n\t"
          "cvt.rn.f16x2.e4m3x2 halves, %1;\n\t"
          "mov.b32 {low, high}, halves;\n\t"
          "cvt.f32.f16 %0, low;\n\t}"
          : "=f"(value)
          : "h"(static_cast<std::uint16_t>(code)));
      return value;
    }
  }
#endif
  return DecodeByProduct<F>(code);
#else
  return Decode<F>(code);
#endif
}

}  // namespace narrowfloat
