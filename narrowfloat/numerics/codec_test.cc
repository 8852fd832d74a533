// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "tests/conformance/reference_codec.h"

namespace narrowfloat {
namespace {

using conformance::ReferenceCodec;
using conformance::ReferenceCodecOf;

std::uint32_t BitsOf(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
float FromBits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

template <class... Ts>
testing::Types<Ts...> AsTypes(TypeList<Ts...>);
template <class... A, class... B>
testing::Types<A..., B...> Joined(TypeList<A...>, TypeList<B...>);

// 16-bit formats of inputs and of dequantized values.
using WideFormats = TypeList<Float16, BFloat16>;

using AllFormats = decltype(Joined(ElementFormats{}, WideFormats{}));
using Elements = decltype(AsTypes(ElementFormats{}));
using Wides = decltype(AsTypes(WideFormats{}));

struct FormatName {
  template <class F>
  static std::string GetName(int) {
    return std::string(F::kName);
  }
};

template <class F>
class CodecTest : public testing::Test {
 protected:
  const ReferenceCodec& reference_ = ReferenceCodecOf(F::kName);
};
TYPED_TEST_SUITE(CodecTest, AllFormats, FormatName);

TYPED_TEST(CodecTest, EveryCodeDecodesToTheTablesValue) {
  for (std::uint32_t code = 0; code < this->reference_.CodeCount(); ++code) {
    const float value = Decode<TypeParam>(code);
    const auto expected = static_cast<float>(this->reference_.Value(code));
    if (std::isnan(expected)) {
      EXPECT_EQ(BitsOf(value), kFloatNan) << std::hex << code;
    } else {
      EXPECT_EQ(BitsOf(value), BitsOf(expected)) << std::hex << code;
    }
  }
}

TYPED_TEST(CodecTest, EveryDecodedCodeEncodesBack) {
  for (std::uint32_t code = 0; code < this->reference_.CodeCount(); ++code) {
    const double value = this->reference_.Value(code);
    if (std::isnan(value) || std::isinf(value)) continue;
    EXPECT_EQ(Encode<TypeParam>(static_cast<float>(value)), code) << std::hex << code;
  }
}

TYPED_TEST(CodecTest, MidpointsAndTheirNeighboursRoundToTheNearestCodeTiesToEven) {
  for (std::uint32_t code = 0; code < TypeParam::kMaxCode; ++code) {
    const auto middle = static_cast<float>(this->reference_.Middle(code));
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float magnitude :
         {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, infinity)}) {
      for (const float x : {magnitude, -magnitude}) {
        ASSERT_EQ(Encode<TypeParam>(x), this->reference_.Encode(static_cast<double>(x)))
            << std::hexfloat << x;
      }
    }
  }
}

TYPED_TEST(CodecTest, SmallestMagnitudesAndZerosKeepTheSign) {
  for (const std::uint32_t bits : {0u, 1u, 0x007FFFFFu, 0x00800000u}) {
    const float x = FromBits(bits);
    EXPECT_EQ(Encode<TypeParam>(x), this->reference_.Encode(static_cast<double>(x)));
    EXPECT_EQ(Encode<TypeParam>(-x), Encode<TypeParam>(x) | kSignCode<TypeParam>);
  }
}

TYPED_TEST(CodecTest, PastTheLargestItSaturates) {
  const float max = kMaxValue<TypeParam>;
  for (const float x :
       {std::nextafter(max, std::numeric_limits<float>::infinity()),
        std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(Encode<TypeParam>(x), TypeParam::kMaxCode);
    EXPECT_EQ(Encode<TypeParam>(-x), TypeParam::kMaxCode | kSignCode<TypeParam>);
  }
}

TYPED_TEST(CodecTest, EveryNanBecomesTheOneNanCodeWithoutASign) {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0x7FFFFFFFu})
    EXPECT_EQ(Encode<TypeParam>(FromBits(bits)), TypeParam::kNanCode) << std::hex << bits;
}

template <class F>
class EveryHalfTest : public CodecTest<F> {};
TYPED_TEST_SUITE(EveryHalfTest, Elements, FormatName);

TYPED_TEST(EveryHalfTest, EncodesToTheNearestCode) {
  for (const char* type : {"float16", "bfloat16"}) {
    const ReferenceCodec& input = ReferenceCodecOf(type);
    for (std::uint32_t bits = 0; bits < input.CodeCount(); ++bits) {
      const double x = input.Value(bits);
      ASSERT_EQ(Encode<TypeParam>(static_cast<float>(x)), this->reference_.Encode(x))
          << type << " " << std::hex << bits;
    }
  }
}

template <class F>
class WideCodecTest : public CodecTest<F> {};
TYPED_TEST_SUITE(WideCodecTest, Wides, FormatName);

TYPED_TEST(WideCodecTest, OverflowToInfinityStartsHalfAStepPastTheLargest) {
  const auto largest = static_cast<double>(kMaxValue<TypeParam>);
  const double step = largest - this->reference_.Value(TypeParam::kMaxCode - 1);
  const auto middle = static_cast<float>(largest + step / 2);
  const auto encode = [](float x) { return Encode<TypeParam, Overflow::kInfinity>(x); };
  EXPECT_EQ(encode(std::nextafter(middle, 0.0f)), TypeParam::kMaxCode);
  EXPECT_EQ(encode(middle), TypeParam::kMaxCode + 1);
  EXPECT_EQ(encode(-middle), (TypeParam::kMaxCode + 1) | kSignCode<TypeParam>);
  EXPECT_EQ(encode(std::numeric_limits<float>::infinity()), TypeParam::kMaxCode + 1);
  EXPECT_EQ(encode(static_cast<float>(largest)), TypeParam::kMaxCode);
}

struct Known {
  float x;
  std::uint32_t code;
  const char* why;
};

template <FloatFormat F>
void ExpectKnown(std::initializer_list<Known> rows) {
  for (const Known& row : rows) EXPECT_EQ(Encode<F>(row.x), row.code) << row.x << ": " << row.why;
}

TEST(KnownCodesTest, E4M3) {
  ExpectKnown<E4M3>({
      {1.0f, 0x38, "exponent field equal to the bias, no mantissa"},
      {448.0f, 0x7E, "the largest: 1.110 x 2^8, since 1.111 is NaN"},
      {464.0f, 0x7E, "halfway to where 480 would be; 480 is no value, so it saturates"},
      {240.0f, 0x77, "the largest if the top exponent were kept for infinity, as in IEEE formats"},
      {0x1p-6f, 0x08, "smallest normal"},
      {0x1p-9f, 0x01, "smallest subnormal"},
      {0x1p-10f, 0x00, "half of it: a tie, to even"},
      {-0x1p-10f, 0x80, "the same below zero keeps its sign"},
      {0x1.8p-9f, 0x02, "a tie between subnormals 1 and 2, to even"},
      {0x1.Ep-7f, 0x08, "a tie between the largest subnormal and the smallest normal"},
      {1.0625f, 0x38, "a tie between 1 and 1.125, down to even"},
      {1.1875f, 0x3A, "a tie between 1.125 and 1.25, up to even"},
      {1.9375f, 0x40, "the mantissa carries into the exponent"},
  });
}

TEST(KnownCodesTest, E5M2) {
  ExpectKnown<E5M2>({
      {1.0f, 0x3C, "exponent field equal to the bias"},
      {57344.0f, 0x7B, "the largest: 1.11 x 2^15"},
      {61440.0f, 0x7B, "halfway to infinity; infinity is never made"},
      {0x1p-14f, 0x04, "smallest normal"},
      {0x1p-16f, 0x01, "smallest subnormal"},
      {0x1p-17f, 0x00, "half of it: a tie, to even"},
      {0x1.000002p-17f, 0x01, "the next float above that tie"},
      {1.125f, 0x3C, "a tie, down to even"},
      {1.375f, 0x3E, "a tie, up to even"},
  });
}

TEST(KnownCodesTest, E2M1) {
  ExpectKnown<E2M1>({
      {0.25f, 0x0, "a tie between 0 and 0.5, to even"},
      {0.75f, 0x2, "a tie between 0.5 and 1, to even"},
      {1.25f, 0x2, "a tie between 1 and 1.5, to even"},
      {1.75f, 0x4, "a tie between 1.5 and 2, to even"},
      {2.5f, 0x4, "a tie between 2 and 3, to even"},
      {3.5f, 0x6, "a tie between 3 and 4, to even"},
      {5.0f, 0x6, "a tie between 4 and 6, to even"},
      {5.0000005f, 0x7, "the next float above that tie"},
      {-0.1f, 0x8, "a negative that rounds to zero keeps its sign"},
  });
}

// A product is rounded to binary32 and then to the code. The first step rounds
// 17/16 + 2^-27 - 2^-46 to 17/16, a tie. Rounding the exact product once would give 0x39.
TEST(KnownCodesTest, RoundingTwiceIsTheRule) {
  const float rounded = FromBits(0x3F87FFFFu) * 1.0000001f;
  EXPECT_EQ(rounded, 1.0625f);
  EXPECT_EQ(Encode<E4M3>(rounded), 0x38u);
}

// Both functions are usable in constant expressions, which build tables at compile time.
static_assert(Encode<E4M3>(448.0f) == 0x7E && Decode<E4M3>(0x7E) == 448.0f);
static_assert(Encode<E5M2>(-0.0f) == 0x80 && Decode<E5M2>(0x01) == 0x1p-16f);
static_assert(Encode<E2M1>(6.0f) == 0x7 && Decode<E2M1>(0xF) == -6.0f);
static_assert(Encode<BFloat16, Overflow::kInfinity>(kMaxValue<Float16>) == 0x4780);
static_assert(kMaxValue<Float16> == 65504.0f);

}  // namespace
}  // namespace narrowfloat
