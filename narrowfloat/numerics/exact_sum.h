// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/numerics/codec.h"

namespace narrowfloat {

/// Adds finite binary32 numbers without an error, in any order: a fixed-point number of 320 bits
/// with 2^-149 as lowest bit.
class ExactSum {
 public:
  constexpr void Add(float x) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t field = bits >> 23 & 0xFFu;
    const std::uint64_t significand = (bits & 0x7FFFFFu) | (field != 0 ? 0x800000u : 0u);
    const std::size_t place = field > 1 ? field - 1 : 0;
    AddShifted(significand, place, (bits & kFloatSign) != 0);
  }

  /// Returns the sum times 2^power in binary64, rounded to odd. A second rounding, to nearest at 51
  /// bits or fewer, then equals one rounding of the sum. Zero is +0. Source: Boldo and Melquiond,
  /// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
  constexpr double RoundToOdd(int power) const noexcept {
    std::array<std::uint64_t, kLimbs> magnitude = limbs_;
    const bool negative = magnitude.back() >> 63 != 0;
    if (negative) Negate(magnitude);
    std::size_t top = kLimbs;
    while (top > 0 && magnitude[top - 1] == 0) --top;
    if (top == 0) return 0.0;
    const int lead = static_cast<int>(top) * 64 - 1 - LeadingZeros(magnitude[top - 1]);
    constexpr int kKept = 53;
    std::uint64_t kept = 0;
    for (int i = 0; i < kKept; ++i) kept = kept << 1 | Bit(magnitude, lead - i);
    for (int i = lead - kKept; i >= 0; --i) kept |= Bit(magnitude, i);
    const int exponent = lead - (kKept - 1) - 149 + power;
    // kept is a 53-bit integer, so the product below only sets the exponent and is exact.
    const double value = static_cast<double>(kept) * PowerOf(exponent);
    return negative ? -value : value;
  }

 private:
  static constexpr std::size_t kLimbs = 5;

  /// Returns std::countl_zero(x), for x > 0. nvcc 13.0 compiles the 64-bit std::countl_zero to a
  /// constant, without a warning.
  static constexpr int LeadingZeros(std::uint64_t x) {
    const auto high = static_cast<std::uint32_t>(x >> 32), low = static_cast<std::uint32_t>(x);
    return high != 0 ? std::countl_zero(high) : 32 + std::countl_zero(low);
  }

  static constexpr std::uint64_t Bit(const std::array<std::uint64_t, kLimbs>& limbs, int i) {
    return i < 0 ? 0 : limbs[static_cast<std::size_t>(i) / 64] >> (i % 64) & 1u;
  }
  static constexpr double PowerOf(int exponent) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
  }
  static constexpr void Negate(std::array<std::uint64_t, kLimbs>& limbs) {
    std::uint64_t carry = 1;
    for (std::uint64_t& limb : limbs) {
      limb = ~limb + carry;
      carry = carry != 0 && limb == 0 ? 1 : 0;
    }
  }
  constexpr void AddShifted(std::uint64_t significand, std::size_t place, bool negative) {
    std::array<std::uint64_t, kLimbs> term{};
    const std::size_t limb = place / 64, shift = place % 64;
    term[limb] = significand << shift;
    if (shift > 40) term[limb + 1] = significand >> (64 - shift);
    if (negative) Negate(term);
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < kLimbs; ++i) {
      const std::uint64_t partial = limbs_[i] + carry;
      const std::uint64_t overflow = partial < carry ? 1 : 0;
      limbs_[i] = partial + term[i];
      carry = overflow | (limbs_[i] < partial ? 1u : 0u);
    }
  }

  std::array<std::uint64_t, kLimbs> limbs_{};
};

/// Returns `x` in binary32, rounded to odd. A second rounding, to nearest at 22 bits or fewer, then
/// equals one rounding of `x`. Keeps infinity and NaN; saturates at the largest finite magnitude.
constexpr float RoundToOdd(double x) noexcept {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const double magnitude = std::bit_cast<double>(bits & ~(std::uint64_t{1} << 63));
  const auto largest = static_cast<double>(kLargestFloat);
  if (!(magnitude <= largest) && magnitude - magnitude == 0.0) {
    return (bits >> 63) != 0 ? -kLargestFloat : kLargestFloat;
  }
  const auto nearest = static_cast<float>(x);
  if (!(magnitude <= largest) || static_cast<double>(nearest) == x) return nearest;
  // Steps back towards zero if rounding increased the magnitude; then sets the last bit.
  auto code = std::bit_cast<std::uint32_t>(nearest);
  const auto away = std::bit_cast<double>(
      std::bit_cast<std::uint64_t>(static_cast<double>(nearest)) & ~(std::uint64_t{1} << 63));
  if (away > magnitude) --code;
  return std::bit_cast<float>(code | 1u);
}

}  // namespace narrowfloat
