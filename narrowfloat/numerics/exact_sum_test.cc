// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

namespace narrowfloat {
namespace {

double SumOf(std::initializer_list<float> terms) {
  ExactSum sum;
  for (const float term : terms) sum.Add(term);
  return sum.RoundToOdd(0);
}

constexpr float kTiny = 0x1p-149f;

TEST(ExactSumTest, CancellationLeavesWhatIsLeft) {
  EXPECT_EQ(SumOf({kLargestFloat, kTiny, -kLargestFloat}), static_cast<double>(kTiny));
  EXPECT_EQ(SumOf({-kLargestFloat, -kTiny, kLargestFloat}), static_cast<double>(-kTiny));
  EXPECT_EQ(SumOf({1.0f, -1.0f, -0.0f}), 0.0);
  EXPECT_FALSE(std::signbit(SumOf({-0.0f, -0.0f})));
}

TEST(ExactSumTest, SixteenOfTheLargestFit) {
  ExactSum sum;
  for (int i = 0; i < 16; ++i) sum.Add(-kLargestFloat);
  EXPECT_EQ(sum.RoundToOdd(0), -16.0 * static_cast<double>(kLargestFloat));
  EXPECT_EQ(sum.RoundToOdd(-2), -4.0 * static_cast<double>(kLargestFloat));
}

// 1 + 2^-80 is between two doubles: the result's last bit is set.
TEST(ExactSumTest, WhatDoesNotFitShowsInTheLastBit) {
  EXPECT_EQ(SumOf({1.0f, 0x1p-80f}), 1.0 + 0x1p-52);
  EXPECT_EQ(SumOf({1.0f, -0x1p-80f}), 1.0 - 0x1p-53);
  EXPECT_EQ(SumOf({-1.0f, -0x1p-80f}), -1.0 - 0x1p-52);
}

TEST(ExactSumTest, EqualsBinary64WhereThatIsExact) {
  const std::uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20000; ++round) {
    ExactSum sum;
    double expected = 0;
    const int base = static_cast<int>(random() % 240) - 130;
    for (int i = 0; i < 16; ++i) {
      const auto significand = static_cast<std::int64_t>(random() & 0x1FFFFFF) - 0x1000000;
      const auto x = static_cast<float>(
          std::ldexp(static_cast<double>(significand),
                     std::max(base, -125) - 24 + static_cast<int>(random() % 20)));
      sum.Add(x);
      expected += static_cast<double>(x);
    }
    ASSERT_EQ(sum.RoundToOdd(0), expected) << "seed " << seed;
  }
}

// Rounding to odd and then to nearest gives the code of one rounding.
TEST(RoundToOddTest, ThenToNearestRoundsOnce) {
  // A tie of bfloat16, and numbers that differ from it by less than a step of binary32.
  const double tie = 1.0 + 0x1p-8;
  for (const auto& [x, code] : {std::pair{tie, 0x3F80u},
                                {tie + 0x1p-40, 0x3F81u},
                                {tie - 0x1p-40, 0x3F80u},
                                {-(tie + 0x1p-40), 0xBF81u}}) {
    EXPECT_EQ((Encode<BFloat16, Overflow::kInfinity>(RoundToOdd(x))), code) << x;
  }
}

TEST(RoundToOddTest, EndsOfTheRange) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(RoundToOdd(1e300), kLargestFloat);
  EXPECT_EQ(RoundToOdd(-1e300), -kLargestFloat);
  EXPECT_EQ(RoundToOdd(kInfinity), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(RoundToOdd(std::nan(""))));
  EXPECT_EQ(RoundToOdd(0x1p-160), kTiny);
  EXPECT_EQ(RoundToOdd(-0x1p-160), -kTiny);
  EXPECT_EQ(RoundToOdd(0.0), 0.0f);
}

}  // namespace
}  // namespace narrowfloat
