// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/numerics/host_device.h"

namespace narrowfloat {

// GELU in its tanh form is x / (1 + e^-v) with v = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3). Both
// functions here use binary64 operations in a fixed order, without contraction, and round to fp32
// once, at the end. So every instruction set gives the same bytes. The final rounding dominates the
// error: errors of binary64 are below 2^-47 of the result or, for the derivative near its zero,
// below 2^-50 absolutely.
inline constexpr double kGeluLinear = 0x1.9884533d43651p+0;      // v = x * (kGeluLinear
inline constexpr double kGeluCubic = 0x1.2444f2a4d8b4bp-4;       //          + kGeluCubic * x^2)
inline constexpr double kGeluCubicSlope = 0x1.b6676bf7450f0p-3;  // 3 * kGeluCubic
inline constexpr double kGeluMinusLog2E = -0x1.71547652b82fep+0;

/// Bounds of the exponent x in 2^x. At GELU's upper bound 2^x is infinite, so that -infinity gives
/// NaN, as in PyTorch's formula. The derivative's bound keeps its products finite.
inline constexpr double kGeluLeastPower = -1000.0;
inline constexpr double kGeluMostPower = 1024.0;
inline constexpr double kGeluGradientMostPower = 1000.0;

/// ln(2)^k / k!, the series of 2^r. From -1/2 to 1/2 the next term is below 2^-52.
inline constexpr double kPowerSeries[] = {
    0x1.0000000000000p+0,  0x1.62e42fefa39efp-1,  0x1.ebfbdff82c58fp-3,  0x1.c6b08d704a0c0p-5,
    0x1.3b2ab6fba4e77p-7,  0x1.5d87fe78a6731p-10, 0x1.430912f86c787p-13, 0x1.ffcbfc588b0c7p-17,
    0x1.62c0223a5c824p-20, 0x1.b5253d395e7c4p-24, 0x1.e4cf5158b8ecap-28, 0x1.e8cac7351bb25p-32,
    0x1.c3bd650fc2986p-36};
inline constexpr std::size_t kPowerTerms = sizeof(kPowerSeries) / sizeof(kPowerSeries[0]);

/// Adding this constant rounds a number to an integer and leaves the integer, biased as an
/// exponent, in the lowest mantissa bits.
inline constexpr double kPowerRounder = 0x1.8p52 + 1023;

/// Returns 2^x, finite or infinite. Requires: -1000 <= x <= 1024, or x is NaN; the result for NaN
/// is unspecified.
NF_HD constexpr double Exp2(double x) noexcept {
  const double whole = x + kPowerRounder;
  const double rest = x - (whole - kPowerRounder);
  double sum = kPowerSeries[kPowerTerms - 1];
  for (std::size_t k = kPowerTerms - 1; k > 0; --k) sum = sum * rest + kPowerSeries[k - 1];
  return sum * std::bit_cast<double>(std::bit_cast<std::uint64_t>(whole) << 52);
}

/// Returns e^-v at `x` as a power of two; limits its exponent to [kGeluLeastPower, most]. `square`
/// is x * x.
NF_HD constexpr double GeluPower(double x, double square, double most) noexcept {
  const double power = x * (kGeluLinear + kGeluCubic * square) * kGeluMinusLog2E;
  const double above = power > kGeluLeastPower ? power : kGeluLeastPower;
  return Exp2(above < most ? above : most);
}

/// Returns GELU of `x`, tanh form. Special values: NaN and -infinity give NaN.
NF_HD constexpr float Gelu(float x) noexcept {
  const auto wide = static_cast<double>(x);
  return static_cast<float>(wide / (1.0 + GeluPower(wide, wide * wide, kGeluMostPower)));
}

/// Returns `factor` times the derivative of GELU at `x`. Special values: NaN and infinities at `x`
/// give NaN.
NF_HD constexpr float TimesGeluGradient(float factor, float x) noexcept {
  const auto wide = static_cast<double>(x);
  const double square = wide * wide;
  const double power = GeluPower(wide, square, kGeluGradientMostPower);
  const double sigmoid = 1.0 / (1.0 + power);
  const double slope = kGeluLinear + kGeluCubicSlope * square;
  // The last difference is 0 or NaN; adding it makes the result NaN where it must be.
  const double gradient = sigmoid + wide * ((power * sigmoid) * sigmoid) * slope + (wide - wide);
  return static_cast<float>(static_cast<double>(factor) * gradient);
}

}  // namespace narrowfloat
