// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/e8m0.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace narrowfloat {
namespace {

std::uint32_t BitsOf(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

// Computed by hand from docs/numerics.md, "Formats".
TEST(E8M0Test, KnownCodes) {
  struct Known {
    std::uint32_t bits, code;
    const char* why;
  };
  constexpr Known kKnown[] = {
      {0x00000000, 0x00, "there is no zero: the smallest power stands for it"},
      {0x00000001, 0x00, "below 2^-127"},
      {0x00400000, 0x00, "2^-127 itself"},
      {0x00400001, 0x01, "the next float above it"},
      {0x007FFFFF, 0x01, "largest subnormal"},
      {0x00800000, 0x01, "2^-126 itself"},
      {0x00800001, 0x02, "the next float above it"},
      {0x3F800000, 0x7F, "1"},
      {0x3F800001, 0x80, "the next float above 1"},
      {0x7F000000, 0xFE, "2^127 itself"},
      {0x7F000001, 0xFE, "above it: saturates"},
      {0x7F7FFFFF, 0xFE, "largest float: saturates"},
      {0x7F800000, 0xFE, "infinity: saturates"},
      {0x7FC00000, 0xFF, "NaN"},
  };
  for (const Known& known : kKnown)
    EXPECT_EQ(EncodeE8M0Up(std::bit_cast<float>(known.bits)), known.code) << known.why;
}

TEST(E8M0Test, EveryPowerKeepsItsCodeAndItsNeighbourRoundsUp) {
  for (std::uint32_t code = 0; code < E8M0::kMaxCode; ++code) {
    const float power = std::ldexp(1.0f, static_cast<int>(code) - 127);
    EXPECT_EQ(EncodeE8M0Up(power), code);
    EXPECT_EQ(EncodeE8M0Up(std::nextafter(power, HUGE_VALF)), code + 1);
    EXPECT_EQ(EncodeE8M0Up(std::nextafter(power, 0.0f)), code == 0 ? 0 : code)
        << "just below a power rounds up to it";
  }
}

TEST(E8M0Test, DecodesToPowersOfTwoAndTheirReciprocals) {
  for (std::uint32_t code = 0; code <= E8M0::kMaxCode; ++code) {
    const int exponent = static_cast<int>(code) - 127;
    EXPECT_EQ(BitsOf(DecodeE8M0(code)), BitsOf(std::ldexp(1.0f, exponent))) << code;
    EXPECT_EQ(BitsOf(DecodeE8M0Reciprocal(code)), BitsOf(std::ldexp(1.0f, -exponent))) << code;
  }
  EXPECT_EQ(BitsOf(DecodeE8M0(E8M0::kNanCode)), kFloatNan);
  EXPECT_EQ(BitsOf(DecodeE8M0Reciprocal(E8M0::kNanCode)), kFloatNan);
}

static_assert(EncodeE8M0Up(1.0f) == 127 && DecodeE8M0(127) == 1.0f);
static_assert(DecodeE8M0Reciprocal(0xFE) == 0x1p-127f, "subnormal, and exact");

}  // namespace
}  // namespace narrowfloat
