// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/scale.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "narrowfloat/numerics/formats.h"

namespace narrowfloat {
namespace {

constexpr float kE4M3Max = kMaxValue<E4M3>, kE5M2Max = kMaxValue<E5M2>;

std::uint32_t BitsOf(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

// Computed by hand from docs/numerics.md, "Per-tensor FP8".
TEST(ScaleFromAmaxTest, KnownScales) {
  struct Known {
    float max, amax;
    std::uint32_t scale, scale_inv, power, power_inv;
  };
  constexpr Known kKnown[] = {
      {kE4M3Max, 1.0f, 0x43E00000, 0x3B124925, 0x43800000, 0x3B800000},
      {kE4M3Max, 3.0f, 0x43155555, 0x3BDB6DB7, 0x43000000, 0x3C000000},
      {kE4M3Max, 0.1f, 0x458C0000, 0x396A0EA1, 0x45800000, 0x39800000},
      {kE4M3Max, 1e-36f, 0x7F7FFFFF, 0x00200000, 0x7F000000, 0x00400000},
      {kE4M3Max, kLargestFloat, 0x03E00001, 0x7B124924, 0x03800000, 0x7B800000},
      {kE5M2Max, 3.0f, 0x46955555, 0x385B6DB7, 0x46800000, 0x38800000},
  };
  for (const Known& known : kKnown) {
    const float scale = ScaleFromAmax(known.amax, known.max, {});
    EXPECT_EQ(BitsOf(scale), known.scale) << known.max << " / " << known.amax;
    EXPECT_EQ(BitsOf(1.0f / scale), known.scale_inv) << known.max << " / " << known.amax;
    const float power = ScaleFromAmax(known.amax, known.max, {.force_pow_2_scales = true});
    EXPECT_EQ(BitsOf(power), known.power) << known.max << " / " << known.amax;
    EXPECT_EQ(BitsOf(1.0f / power), known.power_inv) << known.max << " / " << known.amax;
  }
}

TEST(ScaleFromAmaxTest, ZeroInfiniteAndNanAmaxGiveOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float amax : {0.0f, std::numeric_limits<float>::infinity(), nan, -nan}) {
    for (const bool power : {false, true}) {
      EXPECT_EQ(ScaleFromAmax(amax, kE4M3Max, {.force_pow_2_scales = power}), 1.0f);
      EXPECT_EQ(ScaleFromAmax(amax, kE5M2Max, {.force_pow_2_scales = power}), 1.0f);
    }
  }
}

TEST(ScaleFromAmaxTest, EpsilonLiftsSmallAmaxesOnly) {
  EXPECT_EQ(BitsOf(ScaleFromAmax(0.0f, kE4M3Max, {.amax_epsilon = 1e-12f})), 0x57CBBA10u);
  EXPECT_EQ(ScaleFromAmax(2.0f, kE4M3Max, {.amax_epsilon = 4.0f}), 112.0f);
  EXPECT_EQ(ScaleFromAmax(8.0f, kE4M3Max, {.amax_epsilon = 4.0f}), 56.0f);
  EXPECT_EQ(ScaleFromAmax(std::nanf(""), kE4M3Max, {.amax_epsilon = 4.0f}), 1.0f);
}

TEST(ScaleFromAmaxTest, OverflowTakesTheCallersValue) {
  EXPECT_EQ(ScaleFromAmax(1e-40f, kE4M3Max, {.overflow_scale = 65504.0f}), 65504.0f);
  EXPECT_EQ(
      ScaleFromAmax(1e-40f, kE4M3Max, {.force_pow_2_scales = true, .overflow_scale = 65504.0f}),
      32768.0f);
}

static_assert(ScaleFromAmax(1.0f, kE4M3Max, {}) == 448.0f);
static_assert(ScaleFromAmax(3.0f, kE4M3Max, {.force_pow_2_scales = true}) == 128.0f);

}  // namespace
}  // namespace narrowfloat
