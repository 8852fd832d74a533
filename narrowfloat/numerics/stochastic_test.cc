// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/stochastic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

namespace narrowfloat {
namespace {

// Computed in Python by the formulas of docs/numerics.md, "NVFP4".
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0),
            (PhiloxWords{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(Philox4x32({1, 0, 0, 0}, 0),
            (PhiloxWords{0xF8E4CCA4, 0x5CB200DB, 0xB1A574EB, 0x097EFF67}));
  EXPECT_EQ(Philox4x32({0, 0, 5, 0}, 1234),
            (PhiloxWords{0xF942741C, 0xB7A11B7A, 0x8B27A0CC, 0xBD95ACC8}));
  EXPECT_EQ(Philox4x32({4, 0, 131, 0}, 42),
            (PhiloxWords{0xCBC0C3B1, 0x1E9EE951, 0x36374244, 0x8D6DBAD6}));
}

TEST(RandomBytesTest, AreTheWordsLowestByteFirst) {
  const auto bytes = RandomBytes({1234, 0}, 5);
  const PhiloxWords words{0xF942741C, 0xB7A11B7A, 0x8B27A0CC, 0xBD95ACC8};
  for (std::size_t i = 0; i < kRandomRun; ++i) {
    EXPECT_EQ(bytes[i], static_cast<std::uint8_t>(words[i / 4] >> i % 4 * 8)) << i;
  }
  EXPECT_NE(RandomBytes({1234, 1}, 5), bytes);
  EXPECT_NE(RandomBytes({1234, 0}, kColumnwiseRuns + 5), bytes);
}

// Computed in Python by the formulas of docs/numerics.md, "NVFP4".
TEST(EncodeStochasticTest, KnownAnswers) {
  struct Known {
    float x;
    std::uint8_t random;
    float rounded;
  };
  constexpr Known kKnown[] = {{0.3f, 102, 0.0f},   {0.3f, 103, 0.5f},   {1.9f, 50, 1.5f},
                              {1.9f, 52, 2.0f},    {1.9f, 255, 2.0f},   {3.5f, 127, 3.0f},
                              {3.5f, 128, 4.0f},   {5.0f, 127, 4.0f},   {5.0f, 128, 6.0f},
                              {-0.1f, 204, -0.0f}, {-0.1f, 205, -0.5f}, {7.0f, 0, 6.0f}};
  for (const Known& known : kKnown) {
    EXPECT_EQ(EncodeStochastic(known.x, known.random), Encode<E2M1>(known.rounded))
        << known.x << " by " << int{known.random};
  }
}

TEST(EncodeStochasticTest, WhatTheFormatHoldsStays) {
  for (std::uint32_t code = 0; code < 16; ++code) {
    for (int random = 0; random < 256; ++random)
      EXPECT_EQ(EncodeStochastic(Decode<E2M1>(code), static_cast<std::uint8_t>(random)), code);
  }
}

TEST(EncodeStochasticTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const std::uint8_t random : std::initializer_list<std::uint8_t>{0, 128, 255}) {
    EXPECT_EQ(EncodeStochastic(kInfinity, random), 0x7u);
    EXPECT_EQ(EncodeStochastic(-kInfinity, random), 0xFu);
    EXPECT_EQ(EncodeStochastic(-std::nanf(""), random), 0x7u);
    EXPECT_EQ(EncodeStochastic(-0.0f, random), 0x8u);
  }
}

// The mean over all 256 bytes is at most 1/256 of a step below the value: the bytes divide a step
// into 256 parts, and the mean is the value rounded down to such a part.
TEST(EncodeStochasticTest, MeanOverAllBytesIsTheValue) {
  for (float x = -5.99f; x < 6.0f; x += 0.013f) {
    double sum = 0;
    for (int random = 0; random < 256; ++random)
      sum +=
          static_cast<double>(Decode<E2M1>(EncodeStochastic(x, static_cast<std::uint8_t>(random))));
    const float a = std::fabs(x);
    const double step = a < 2 ? 0.5 : a < 4 ? 1.0 : 2.0;
    const double lost = std::fabs(static_cast<double>(x)) - std::fabs(sum / 256);
    EXPECT_GE(lost, -1e-6) << x;  // EncodeStochastic's fp32 sum rounds by at most 2^-22
    EXPECT_LE(lost, step / 256 + 1e-6) << x;
  }
}

}  // namespace
}  // namespace narrowfloat
