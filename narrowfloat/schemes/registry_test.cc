// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/schemes/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

namespace narrowfloat {
namespace {

template <class List>
struct AsGtestTypes;
template <class... Ts>
struct AsGtestTypes<TypeList<Ts...>> {
  using type = testing::Types<Ts...>;
};

struct SchemeName {
  template <class S>
  static std::string GetName(int) {
    return std::string(kSchemes[IndexIn<S>(AllSchemes{})].name);
  }
};

template <class S>
class SchemeTest : public testing::Test {};
TYPED_TEST_SUITE(SchemeTest, AsGtestTypes<AllSchemes>::type, SchemeName);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t BitsOf(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

// Returns 0 and amaxes from the smallest subnormal to the largest float, four in most binades.
std::vector<float> Amaxes() {
  std::vector<float> amaxes{0.0f};
  for (std::uint32_t bits = 1; bits < kFloatInfinity; bits += 0x1FFFF7u)
    amaxes.push_back(std::bit_cast<float>(bits));
  amaxes.push_back(kLargestFloat);
  return amaxes;
}

/// True for schemes with two levels of scales: block scales and an amax.
template <class S>
constexpr bool kTwoLevels = S::kLayout.scale_type == ScaleType::kE4M3;

TYPED_TEST(SchemeTest, ScaledAmaxExceedsTheFormatByNoMoreThanItsRounding) {
  // One rounding if the scale is a quotient, five if it has a second level.
  float limit = kMaxValue<typename TypeParam::Element>;
  for (int i = 0; i < (kTwoLevels<TypeParam> ? 5 : 1); ++i)
    limit = std::nextafter(limit, kInfinity);
  for (const float amax : Amaxes()) {
    const BlockScale scale = TypeParam::ScaleBlock(amax, TypeParam::Prepare(amax, {}));
    // For small amaxes the tensor's scale saturates at the largest float, and is too small.
    if (kTwoLevels<TypeParam> && amax < 0x1p-100f) continue;
    EXPECT_LE(amax * scale.scale, limit) << amax;
    EXPECT_GT(scale.scale, 0.0f) << amax;
  }
}

TYPED_TEST(SchemeTest, ScaleInvIsTheReciprocalOfTheScale) {
  for (const float amax : Amaxes()) {
    const auto state = TypeParam::Prepare(amax, {});
    const BlockScale scale = TypeParam::ScaleBlock(amax, state);
    const float scale_inv = TypeParam::DecodeScale(scale.scale_inv, state);
    if constexpr (kTwoLevels<TypeParam>) {
      // In TransformerEngine's order, products overflow for the largest amaxes and lose digits for
      // the smallest.
      if (amax > 0x1p-100f && amax < 0x1p100f) {
        // Eight roundings of at most 2^-24 each.
        EXPECT_NEAR(scale_inv * scale.scale, 1.0f, 0x1p-21f) << amax;
      }
    } else {
      EXPECT_EQ(BitsOf(scale_inv), BitsOf(1.0f / scale.scale)) << amax;
    }
  }
}

TYPED_TEST(SchemeTest, DoublingTheAmaxHalvesTheScale) {
  for (float amax = 0x1p-60f; amax < 0x1p60f; amax *= 1.37f) {
    const float once = TypeParam::ScaleBlock(amax, TypeParam::Prepare(amax, {})).scale;
    const float twice = TypeParam::ScaleBlock(2 * amax, TypeParam::Prepare(2 * amax, {})).scale;
    EXPECT_EQ(once, 2 * twice) << amax;
  }
}

struct KnownBlock {
  float amax;
  std::uint32_t scale_code;
  const char* why;
};
constexpr float kBFloat16Max = kMaxValue<BFloat16>;

template <Scheme S>
void ExpectKnown(std::initializer_list<KnownBlock> rows) {
  for (const KnownBlock& row : rows)
    EXPECT_EQ(S::ScaleBlock(row.amax, S::Prepare(row.amax, {})).scale_inv, row.scale_code)
        << row.amax << ": " << row.why;
}

// Computed by hand from docs/numerics.md, "MXFP8".
TEST(Mxfp8Test, KnownScaleCodesE4M3) {
  ExpectKnown<Mxfp8Scheme<E4M3>>({
      {0.0f, 0x00, "no zero: the smallest power"},
      {1.0f, 0x77, "1/448 rounds up to 2^-8"},
      {447.0f, 0x7F, "just below the largest"},
      {448.0f, 0x7F, "the largest itself: scale 1"},
      {449.0f, 0x80, "just above: the next power"},
      {57344.0f, 0x86, "448 x 2^7"},
      {57345.0f, 0x87, "just above"},
      {0x1p-126f, 0x00, "the quotient is below 2^-127"},
      {kBFloat16Max, 0xF7, "largest bfloat16"},
      {kInfinity, 0xFE, "infinity: the largest power"},
  });
}

TEST(Mxfp8Test, KnownScaleCodesE5M2) {
  ExpectKnown<Mxfp8Scheme<E5M2>>({
      {1.0f, 0x70, "1/57344 rounds up to 2^-15"},
      {447.0f, 0x78, "447/57344 rounds up to 2^-7"},
      {448.0f, 0x78, "448/57344 is 2^-7"},
      {449.0f, 0x79, "just above"},
      {57344.0f, 0x7F, "the largest itself: scale 1"},
      {57345.0f, 0x80, "just above: the next power"},
      {kBFloat16Max, 0xF0, "largest bfloat16"},
      {kInfinity, 0xFE, "infinity: the largest power"},
  });
}

TEST(Fp8TensorTest, AGivenScaleStandsWhateverTheAmax) {
  using S = PerTensorFp8Scheme<E4M3>;
  const ScaleOptions given{.has_scale = true, .scale = 0.25f, .rule = {}};
  for (const float amax : {0.0f, 1.0f, kInfinity}) {
    const BlockScale scale = S::ScaleBlock(amax, S::Prepare(amax, given));
    EXPECT_EQ(scale.scale, 0.25f);
    EXPECT_EQ(scale.scale_inv, BitsOf(4.0f));
  }
}

TEST(RegistryTest, NamesCarryTheirElementFormat) {
  for (const SchemeInfo& scheme : kSchemes) {
    // Names need no format if the codes have 4 bits: E2M1 is the only such format.
    EXPECT_TRUE(scheme.element_bits == 4 || scheme.name.ends_with(scheme.element)) << scheme.name;
    EXPECT_NE(scheme.id, 0) << scheme.name;
  }
}

// Files store ids: with another id of a scheme, old files would be read wrongly.
TEST(RegistryTest, IdsStayAsReleased) {
  struct Released {
    std::string_view name;
    std::uint16_t id;
  };
  constexpr Released kReleased[] = {{"fp8_e4m3", 0x0101},
                                    {"fp8_e5m2", 0x0102},
                                    {"mxfp8_e4m3", 0x0201},
                                    {"mxfp8_e5m2", 0x0202},
                                    {"mxfp8_2d_e4m3", 0x0211},
                                    {"mxfp8_2d_e5m2", 0x0212},
                                    {"fp8_block1x128_e4m3", 0x0301},
                                    {"fp8_block1x128_e5m2", 0x0302},
                                    {"fp8_block128x128_e4m3", 0x0311},
                                    {"fp8_block128x128_e5m2", 0x0312},
                                    {"nvfp4", 0x0401},
                                    {"nvfp4_2d", 0x0411},
                                    {"mxfp4", 0x0501}};
  for (const Released& released : kReleased) {
    const auto* found = std::ranges::find(kSchemes, released.name, &SchemeInfo::name);
    ASSERT_NE(found, kSchemes.end()) << released.name;
    EXPECT_EQ(found->id, released.id) << released.name;
  }
  constexpr std::size_t kOwnCount = std::tuple_size_v<decltype(kOwnSchemes)>;
  for (const SchemeInfo& scheme : std::span(kSchemes).first<kOwnCount>()) {
    EXPECT_NE(std::ranges::find(kReleased, scheme.name, &Released::name), std::end(kReleased))
        << scheme.name << " needs a row here";
  }
}

// The functions of schemes are usable in constant expressions.
static_assert(Mxfp8Scheme<E4M3>::ScaleBlock(448.0f, {}).scale_inv == 127);
static_assert(PerTensorFp8Scheme<E5M2>::Prepare(1.0f, {}).scale == 57344.0f);

}  // namespace
}  // namespace narrowfloat
