// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "narrowfloat/numerics/float_format.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/numerics/host_device.h"

namespace narrowfloat {

inline constexpr std::uint32_t kFloatSign = 0x80000000u;
inline constexpr std::uint32_t kFloatInfinity = 0x7F800000u;
inline constexpr std::uint32_t kFloatNan =
    0x7FC00000u;  // the quiet NaN that every result here uses
inline constexpr float kLargestFloat = std::bit_cast<float>(0x7F7FFFFFu);

/// Encoding of magnitudes above the largest finite one, infinity included.
enum class Overflow { kSaturate, kInfinity };

/// Shifts right, rounding to nearest with ties to even. Shift: 1 to 31.
NF_HD constexpr std::uint32_t ShiftRightNearestEven(std::uint32_t value, int shift) noexcept {
  const std::uint32_t half = 1u << (shift - 1);
  const std::uint32_t odd = (value >> shift) & 1u;
  return (value + (half - 1u) + odd) >> shift;
}

/// Returns the code of `F` nearest to `x`, ties to even, subnormals kept.
/// Special values: NaN of any sign gives kNanCode without a sign; -0 and negatives that round to
/// zero keep the sign. Integer arithmetic only, so the caller's rounding mode and flush-to-zero do
/// not matter. Source: IEEE 754 section 4.3.1; saturation as PTX cvt.rn.satfinite, which
/// TransformerEngine uses for all data.
template <FloatFormat F, Overflow kOverflow = Overflow::kSaturate>
NF_HD constexpr std::uint32_t Encode(float x) noexcept {
  constexpr int kDrop = 23 - F::kMantissaBits;
  constexpr int kMinExponent = 128 - F::kBias;  // fp32 exponent field of the smallest normal of F
  constexpr std::uint32_t kLimit = F::kMaxCode + (kOverflow == Overflow::kInfinity ? 1u : 0u);
  static_assert(kOverflow == Overflow::kSaturate || F::kHasInfinity);

  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits & kFloatSign) != 0 ? kSignCode<F> : 0u;
  const std::uint32_t magnitude = bits & ~kFloatSign;
  if (magnitude > kFloatInfinity) return F::kNanCode;

  const int exponent = static_cast<int>(magnitude >> 23);
  std::uint32_t code = 0;
  if (exponent >= kMinExponent) {
    // The mantissa may carry into the exponent, which is the right code: 1.1111 rounds up to the
    // next binade.
    code = ShiftRightNearestEven(magnitude, kDrop) -
           (static_cast<std::uint32_t>(kMinExponent - 1) << F::kMantissaBits);
  } else {
    // Subnormal in F: aligns the significand with F's smallest step. After a shift of 25 or more,
    // less than half a step remains.
    const std::uint32_t significand = (magnitude & 0x7FFFFFu) | (exponent > 0 ? 0x800000u : 0u);
    const int shift = kDrop + kMinExponent - (exponent > 0 ? exponent : 1);
    code = shift <= 24 ? ShiftRightNearestEven(significand, shift) : 0u;
  }
  return sign | (code < kLimit ? code : kLimit);
}

/// Returns the value of a code. Exact for every format here; NaN codes give the one quiet NaN.
template <FloatFormat F>
NF_HD constexpr float Decode(std::uint32_t code) noexcept {
  const std::uint32_t sign = (code & kSignCode<F>) != 0 ? kFloatSign : 0u;
  const std::uint32_t magnitude = code & (kSignCode<F> - 1u);
  if (F::kMaxCode != kSignCode<F> - 1u && magnitude > F::kMaxCode) {
    const bool infinite = F::kHasInfinity && magnitude == F::kMaxCode + 1u;
    return std::bit_cast<float>(infinite ? sign | kFloatInfinity : kFloatNan);
  }
  const std::uint32_t exponent = magnitude >> F::kMantissaBits;
  std::uint32_t mantissa = (magnitude << (23 - F::kMantissaBits)) & 0x7FFFFFu;
  if (exponent != 0 || F::kBias == 127) {  // bfloat16's subnormals are binary32's
    return std::bit_cast<float>(sign | ((exponent + 127u - F::kBias) << 23) | mantissa);
  }
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // A subnormal of F is a normal binary32: shifts its leading bit to the hidden bit's position.
  const int shift = std::countl_zero(mantissa) - 8;
  mantissa = (mantissa << shift) & 0x7FFFFFu;
  const auto field = static_cast<std::uint32_t>(128 - F::kBias - shift);
  return std::bit_cast<float>(sign | (field << 23) | mantissa);
}

/// Largest finite value of `F`.
template <FloatFormat F>
inline constexpr float kMaxValue = Decode<F>(F::kMaxCode);

/// Returns `x`, or the one quiet NaN for any NaN, so that results do not depend on a backend's NaN.
NF_HD constexpr float CanonicalNan(float x) noexcept {
  return x == x ? x : std::bit_cast<float>(kFloatNan);
}

}  // namespace narrowfloat
