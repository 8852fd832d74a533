// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/gelu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"

namespace narrowfloat {
namespace {

constexpr long double kSlope = 1.595769121605730711759784239737874438L;  // 2 * sqrt(2 / pi)
constexpr long double kCubic = 0.044715L;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Returns 1 / (1 + e^-v) with v = kSlope * (x + kCubic * x^3).
long double Sigmoid(long double x) {
  return 1.0L / (1.0L + std::exp(-kSlope * (x + kCubic * x * x * x)));
}

/// Returns half the distance of the fp32 numbers below and above `value`.
long double HalfStep(long double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(0.5L, std::max(exponent - 24, -149));
}

/// Checks both functions: rounding to fp32 is off by at most half a step. The binary64 arithmetic
/// adds less than a ten-thousandth of that, and less than 2^-50 for derivatives near zero.
void ExpectBothAreRoundedOnce(float x) {
  const long double wide = x, sigmoid = Sigmoid(wide);
  const long double gelu = wide * sigmoid;
  ASSERT_LE(std::abs(static_cast<long double>(Gelu(x)) - gelu), HalfStep(gelu) * 1.0001L) << x;
  const long double slope = kSlope * (1.0L + 3.0L * kCubic * wide * wide);
  const long double gradient = sigmoid + wide * sigmoid * (1.0L - sigmoid) * slope;
  ASSERT_LE(std::abs(static_cast<long double>(TimesGeluGradient(1.0f, x)) - gradient),
            HalfStep(gradient) * 1.0001L + 0x1p-50L)
      << x;
}

template <class F>
void TryEveryCode() {
  for (std::uint32_t code = 0; code < 0x10000u; ++code) {
    const float x = Decode<F>(code);
    if (std::isfinite(x)) ExpectBothAreRoundedOnce(x);
  }
}

TEST(GeluTest, EveryNarrowInputIsRoundedOnce) {
  TryEveryCode<BFloat16>();
  TryEveryCode<Float16>();
}

TEST(GeluTest, EveryTenThousandthFloatIsRoundedOnce) {
  for (std::uint64_t code = 0; code < std::uint64_t{1} << 32; code += 9973) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(code));
    if (std::isfinite(x)) ExpectBothAreRoundedOnce(x);
  }
}

TEST(GeluTest, SpecialValues) {
  EXPECT_EQ(Gelu(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(Gelu(-kInfinity)));
  EXPECT_TRUE(std::isnan(Gelu(std::nanf(""))));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(Gelu(-0.0f)), kFloatSign);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(Gelu(-kLargestFloat)), kFloatSign);
  EXPECT_EQ(Gelu(kLargestFloat), kLargestFloat);
  EXPECT_EQ(TimesGeluGradient(3.0f, kLargestFloat), 3.0f);
  EXPECT_EQ(TimesGeluGradient(3.0f, -kLargestFloat), 0.0f);
  EXPECT_EQ(TimesGeluGradient(3.0f, 0.0f), 1.5f);
  for (const float x : {kInfinity, -kInfinity, std::nanf("")})
    EXPECT_TRUE(std::isnan(TimesGeluGradient(1.0f, x))) << x;
}

}  // namespace
}  // namespace narrowfloat
