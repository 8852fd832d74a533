// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/delayed_scale.h"

#include <gtest/gtest.h>

#include <limits>

#include "narrowfloat/numerics/formats.h"

namespace narrowfloat {
namespace {

constexpr float kE4M3Max = kMaxValue<E4M3>, kE5M2Max = kMaxValue<E5M2>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSmallest = 0x1p-149f;

TEST(LargerAmaxTest, NanGivesWay) {
  EXPECT_EQ(LargerAmax(1.0f, 2.0f), 2.0f);
  EXPECT_EQ(LargerAmax(2.0f, 1.0f), 2.0f);
  EXPECT_EQ(LargerAmax(0.0f, kNan), 0.0f);
  EXPECT_EQ(LargerAmax(kNan, 3.0f), 3.0f);
  EXPECT_EQ(LargerAmax(kInfinity, kNan), kInfinity);
  EXPECT_EQ(LargerAmax(kSmallest, 0.0f), kSmallest);
}

// Computed by hand from docs/numerics.md, "Delayed scaling over time".
TEST(DelayedScaleTest, KnownScales) {
  EXPECT_EQ(std::bit_cast<std::uint32_t>(DelayedScale(5.0f, kE4M3Max, 1.0f)), 0x42B33333u);
  EXPECT_EQ(DelayedScale(448.0f, kE4M3Max, 7.0f), 1.0f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(DelayedScale(3.0f, kE5M2Max, 1.0f)), 0x46955555u);
}

TEST(DelayedScaleTest, AnAmaxThatIsNoMagnitudeKeepsTheOldScale) {
  for (const float amax : {0.0f, -0.0f, -2.0f, kInfinity, -kInfinity, kNan, -kNan}) {
    EXPECT_EQ(DelayedScale(amax, kE4M3Max, 7.0f), 7.0f) << amax;
  }
}

TEST(DelayedScaleTest, AnInfiniteScaleBecomesTheLargestFloat) {
  EXPECT_EQ(DelayedScale(kSmallest, kE4M3Max, 7.0f), kLargestFloat);
  EXPECT_EQ(DelayedScale(0.0f, kE4M3Max, kInfinity), kLargestFloat);
  EXPECT_EQ(DelayedScale(0.0f, kE4M3Max, -kInfinity), kLargestFloat);
  EXPECT_NE(DelayedScale(0.0f, kE4M3Max, kNan), kLargestFloat);
}

TEST(DelayedScaleTest, TheScaleMayBeSubnormalOrZero) {
  // A large margin or amax gives a subnormal scale. The division must not flush it.
  EXPECT_EQ(DelayedScale(0x1p20f, 0x1.cp-142f, 7.0f), 0.0f);
  EXPECT_EQ(DelayedScale(0x1p4f, 0x1.cp-140f, 7.0f), 0x1.cp-144f);
}

static_assert(DelayedScale(5.0f, 440.0f, 1.0f) == 88.0f);
static_assert(DelayedScale(kNan, 440.0f, 3.0f) == 3.0f);

}  // namespace
}  // namespace narrowfloat
