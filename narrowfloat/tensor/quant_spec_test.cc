// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/quant_spec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/spec_field.h"
#include "narrowfloat/tensor/testing.h"
#include "tests/conformance/float_settings.h"

namespace narrowfloat {
namespace {

std::string ParseError(std::string_view text) {
  return MessageOf<InvalidArgument>([&] { static_cast<void>(ParseQuantSpec(text)); });
}

std::string ValidateError(const QuantSpec& spec) {
  return MessageOf<InvalidArgument>([&] { ValidateSpec(spec); });
}

/// Returns a valid spec with random options of its scheme. Floats have random bits.
QuantSpec RandomSpec(std::mt19937_64& random) {
  const auto coin = [&] { return random() % 2 == 0; };
  const auto number = [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); };
  const SchemeInfo& scheme = kSchemes[random() % kSchemeCount];
  QuantSpec spec{.scheme = &scheme, .rowwise = coin()};
  spec.columnwise = !spec.rowwise || coin();
  const auto takes = [&](Option option) { return scheme.options.Has(option) && coin(); };
  if (takes(Option::kHadamard)) {
    spec.rht = true;
    spec.rht_sign_mask = random() & 0xFFFF;
  } else if (takes(Option::kFourOverSix)) {
    spec.four_over_six = coin() ? FourOverSix::kMeanAbsoluteError : FourOverSix::kMeanSquaredError;
    spec.four_over_six_fast_error = coin();
    spec.e4m3_max = coin() ? 256.0f : 448.0f;
  } else if (takes(Option::kStochasticRounding)) {
    spec.stochastic_rounding = true;
    spec.seed = random();
    spec.offset = random();
  }
  spec.row_scaled = !spec.rht && !spec.stochastic_rounding && takes(Option::kRowScaled);
  if (!spec.row_scaled && takes(Option::kAmax)) spec.amax = number();
  if (!spec.row_scaled && takes(Option::kAmaxColumnwise)) spec.amax_columnwise = number();
  if (takes(Option::kScale)) {
    spec.scale = number();
  } else {
    if (takes(Option::kAmaxEpsilon)) {
      const float epsilon = std::fabs(number());
      spec.amax_epsilon = std::isfinite(epsilon) ? epsilon : 1.0f;
    }
    spec.force_pow_2_scales = takes(Option::kForcePow2Scales);
  }
  spec.swizzled = takes(Option::kSwizzled);
  return spec;
}

TEST(QuantSpecTest, TextRoundTripsForRandomSpecs) {
  const std::uint64_t seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20000; ++i) {
    const QuantSpec spec = RandomSpec(random);
    const std::string text = PrintQuantSpec(spec);
    ASSERT_EQ(ParseError(text), "no error") << text << ", seed " << seed;
    ASSERT_TRUE(ParseQuantSpec(text) == spec) << text << ", seed " << seed;
    ASSERT_EQ(PrintQuantSpec(ParseQuantSpec(text)), text) << "seed " << seed;
  }
}

TEST(QuantSpecTest, DefaultsAreLeftOutAndKeysSorted) {
  EXPECT_EQ(PrintQuantSpec({.scheme = &FindScheme("mxfp8_e5m2")}), "mxfp8_e5m2");
  const QuantSpec spec{.scheme = &FindScheme("fp8_e4m3"),
                       .rowwise = false,
                       .columnwise = true,
                       .amax = 2.5f,
                       .force_pow_2_scales = true};
  EXPECT_EQ(PrintQuantSpec(spec), "fp8_e4m3:amax=2.5,columnwise=1,force_pow_2_scales=1,rowwise=0");
}

TEST(QuantSpecTest, ComparesByBits) {
  QuantSpec a{.scale = 0.0f}, b{.scale = -0.0f};
  EXPECT_FALSE(a == b);
  a.scale = b.scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(a == b);
  b.scale = std::bit_cast<float>(0x7FA00001u);
  EXPECT_TRUE(a == b) << "text has no payload";
  EXPECT_TRUE(ParseQuantSpec(PrintQuantSpec(b)) == b);
  b.scale = -*a.scale;
  EXPECT_FALSE(a == b) << "\"nan\" and \"-nan\"";
  EXPECT_TRUE(ParseQuantSpec(PrintQuantSpec(b)) == b);
  b.scale.reset();
  EXPECT_FALSE(a == b);
}

TEST(QuantSpecTest, ParseReportsWhatIsWrong) {
  std::string known;
  for (const SchemeInfo& scheme : kSchemes) {
    known += std::string(known.empty() ? "there are: " : ", ").append(scheme.name);
  }
  EXPECT_EQ(ParseError("fp9"), "unknown scheme 'fp9'; " + known);
  EXPECT_EQ(ParseError(""), "unknown scheme ''; " + known);
  EXPECT_EQ(ParseError("MXFP8"), "unknown scheme 'MXFP8' (did you mean 'mxfp8_e4m3'?); " + known);
  EXPECT_TRUE(ParseError("nvfp4:seeds=1")
                  .starts_with("spec: unknown option 'seeds' (did you mean 'seed'?); there are: "));
  EXPECT_EQ(ParseError("fp8_e4m3:"), "spec: needs an option after ':', got 'fp8_e4m3:'");
  EXPECT_EQ(ParseError("fp8_e4m3:amax=1,"),
            "spec: needs an option after ',', got 'fp8_e4m3:amax=1,'");
  EXPECT_EQ(ParseError("fp8_e4m3:columnwise"), "spec: options must be key=value, got 'columnwise'");
  EXPECT_EQ(
      ParseError("fp8_e4m3:block=32"),
      "spec: unknown option 'block'; there are: amax, amax_columnwise, amax_epsilon, columnwise, "
      "e4m3_max, force_pow_2_scales, four_over_six, four_over_six_fast_error, offset, rht, "
      "rht_sign_mask, row_scaled, rowwise, scale, seed, stochastic_rounding, swizzled");
  EXPECT_EQ(ParseError("fp8_e4m3:scale=1,amax=1"),
            "spec: options must be sorted and given once, got 'fp8_e4m3:scale=1,amax=1'; sorted it "
            "is 'fp8_e4m3:amax=1,scale=1'");
  EXPECT_EQ(ParseError("fp8_e4m3:scale=1,scale=1"),
            "spec: options must be sorted and given once, got 'fp8_e4m3:scale=1,scale=1'");
  EXPECT_EQ(ParseError("fp8_e4m3:columnwise=yes"), "spec: columnwise must be 0 or 1, got 'yes'");
  EXPECT_EQ(ParseError("fp8_e4m3:scale=1x"),
            "spec: scale must be a number that float32 holds, got '1x'");
  EXPECT_EQ(ParseError("fp8_e4m3:scale="),
            "spec: scale must be a number that float32 holds, got ''");
  EXPECT_EQ(ParseError("fp8_e4m3:scale=1e99"),
            "spec: scale must be a number that float32 holds, got '1e99'");
}

TEST(QuantSpecTest, MessagesHaveTheBeginningOfALongText) {
  const std::string megabyte(std::size_t{1} << 20, 'a');
  const std::string cut = std::string(1024, 'a') + "...'";
  EXPECT_NE(ParseError(megabyte).find("unknown scheme '" + cut), std::string::npos);
  for (const std::string& text :
       {megabyte, "fp8_e4m3:" + megabyte, "fp8_e4m3:" + megabyte + "=1",
        "fp8_e4m3:scale=" + megabyte, "fp8_e4m3:rowwise=" + megabyte,
        "nvfp4:four_over_six=" + megabyte, "nvfp4:seed=1,amax=1" + megabyte,
        "nvfp4:seed=1" + std::string(1 << 20, '0') + ",seed=1", "nvfp4:seed=1," + megabyte}) {
    EXPECT_LT(ParseError(text).size(), 4096u) << text.substr(0, 40);
  }
}

TEST(QuantSpecTest, ValidateReportsWhatIsWrong) {
  const SchemeInfo& mx = FindScheme("mxfp8_e4m3");
  const SchemeInfo& fp8 = FindScheme("fp8_e4m3");
  EXPECT_EQ(ValidateError({.scheme = &mx, .scale = 1.0f}),
            "quantize: mxfp8_e4m3 does not take the option 'scale'; it takes: columnwise, "
            "rowwise, swizzled");
  EXPECT_EQ(ValidateError({.scheme = &fp8, .swizzled = true}),
            "quantize: fp8_e4m3 does not take the option 'swizzled'; it takes: amax, "
            "amax_epsilon, columnwise, force_pow_2_scales, rowwise, scale");
  EXPECT_EQ(ValidateError({.scheme = &mx, .rowwise = false}),
            "quantize: mxfp8_e4m3 needs rowwise, columnwise or both, got neither");
  EXPECT_EQ(ValidateError({.scheme = &fp8, .amax_epsilon = -1.0f}),
            "quantize: amax_epsilon must be finite and not negative, got -1");
  EXPECT_EQ(ValidateError({.scheme = &fp8, .amax_epsilon = std::nanf("")}),
            "quantize: amax_epsilon must be finite and not negative, got nan");
  EXPECT_EQ(ValidateError({.scheme = &fp8, .scale = 1.0f, .force_pow_2_scales = true}),
            "quantize: amax_epsilon and force_pow_2_scales must not be given together with scale");
}

TEST(QuantSpecTest, IsTheSameUnderAnyFloatSettings) {
  const SchemeInfo& fp8 = FindScheme("fp8_e4m3");
  for (const FloatSettings& settings : AllFloatSettings()) {
    settings.Apply();
    const QuantSpec spec = ParseQuantSpec("fp8_e4m3:amax=1e-40,scale=0.3");
    const std::string tiny_epsilon =
        ValidateError({.scheme = &fp8, .scale = 1.0f, .amax_epsilon = 0x1p-140f});
    QuantSpec set;
    const auto refuses = [&](const char* key) {
      try {
        SetSpecField(set, key, 0x1p-140f);
      } catch (const InvalidArgument&) {
        return true;
      }
      return false;
    };
    const bool flag = refuses("columnwise"), integer = refuses("seed");
    FloatSettings{}.Apply();
    EXPECT_EQ(spec.scale, 0x1.333334p-2f);
    EXPECT_EQ(spec.amax, 1e-40f);
    EXPECT_EQ(
        tiny_epsilon,
        "quantize: amax_epsilon and force_pow_2_scales must not be given together with scale");
    EXPECT_TRUE(flag && integer) << "a subnormal is not 0";
  }
}

TEST(QuantSpecTest, ASchemeIsAnElementOfTheRegistry) {
  const SchemeInfo copy = FindScheme("mxfp8_e4m3");
  EXPECT_EQ(ValidateError({.scheme = &copy}),
            "spec: scheme must point to an element of kSchemes, got another address");
  EXPECT_EQ(ValidateError({.scheme = nullptr}),
            "spec: scheme must point to an element of kSchemes, got null");
  EXPECT_THROW(PrintQuantSpec({.scheme = nullptr}), InvalidArgument);
}

TEST(QuantSpecTest, OptionsOfNvfp4) {
  EXPECT_EQ(PrintQuantSpec(ParseQuantSpec("nvfp4:rht=1,seed=18446744073709551615")),
            "nvfp4:rht=1,seed=18446744073709551615");
  EXPECT_EQ(PrintQuantSpec(ParseQuantSpec("nvfp4:e4m3_max=256,four_over_six=mse")),
            "nvfp4:e4m3_max=256,four_over_six=mse");
  EXPECT_EQ(ParseError("nvfp4:four_over_six=max"),
            "quantize: four_over_six must be 'mae' or 'mse', got 'max'");
  EXPECT_EQ(ParseError("nvfp4:seed=-1"),
            "spec: seed must be an integer from 0 to 2^64 - 1, got '-1'");
  EXPECT_EQ(ParseError("nvfp4:e4m3_max=300"), "quantize: e4m3_max must be 448 or 256, got 300");
  EXPECT_EQ(ParseError("nvfp4:rht=1,rht_sign_mask=65536"),
            "quantize: rht_sign_mask must fit in 16 bits, got 65536");
  EXPECT_EQ(ParseError("nvfp4:four_over_six=mae,rht=1"),
            "quantize: four_over_six must not be given together with rht");
  EXPECT_EQ(ParseError("nvfp4:four_over_six=mae,stochastic_rounding=1"),
            "quantize: four_over_six must not be given together with stochastic_rounding");
  EXPECT_EQ(ParseError("nvfp4:rht=1,row_scaled=1"),
            "quantize: row_scaled must not be given together with rht");
  EXPECT_EQ(ParseError("nvfp4:amax=1,row_scaled=1"),
            "quantize: row_scaled must not be given together with amax");
  EXPECT_EQ(ParseError("nvfp4_2d:row_scaled=1"),
            "quantize: nvfp4_2d does not take the option 'row_scaled'; it takes: amax, "
            "amax_columnwise, columnwise, e4m3_max, four_over_six, four_over_six_fast_error, "
            "offset, rowwise, seed, stochastic_rounding, swizzled");
  // Some specs are valid only to dequantize.
  EXPECT_NO_THROW(ParseQuantSpec("nvfp4:e4m3_max=256"));
  EXPECT_THROW(ValidateForQuantize(ParseQuantSpec("nvfp4:e4m3_max=256")), InvalidArgument);
}

TEST(QuantSpecTest, PowersOfTwoAreTheDefaultOfBlocksAlone) {
  EXPECT_FALSE(QuantSpec{.scheme = &FindScheme("fp8_e4m3")}.ForcesPow2Scales());
  const QuantSpec block{.scheme = &FindScheme("fp8_block1x128_e4m3")};
  EXPECT_TRUE(block.ForcesPow2Scales());
  EXPECT_TRUE(ParseQuantSpec("fp8_block1x128_e4m3:force_pow_2_scales=1") == block);
  EXPECT_EQ(PrintQuantSpec(ParseQuantSpec("fp8_block1x128_e4m3:force_pow_2_scales=0")),
            "fp8_block1x128_e4m3:force_pow_2_scales=0");
}

TEST(SetSpecFieldTest, SetsByKeyAndConvertsNumbersToFlags) {
  QuantSpec spec;
  EXPECT_TRUE(SetSpecField(spec, "columnwise", true));
  EXPECT_TRUE(spec.columnwise);
  EXPECT_TRUE(SetSpecField(spec, "columnwise", 0.0f));
  EXPECT_FALSE(spec.columnwise);
  EXPECT_TRUE(SetSpecField(spec, "seed", std::uint64_t{3}));
  EXPECT_EQ(spec.seed, 3u);
  EXPECT_TRUE(SetSpecField(spec, "scale", 2.0f));
  EXPECT_EQ(spec.scale, 2.0f);
  EXPECT_TRUE(SetSpecField(spec, "amax_epsilon", 0.5f));
  EXPECT_EQ(spec.amax_epsilon, 0.5f);
  EXPECT_FALSE(SetSpecField(spec, "Scale", 2.0f)) << "keys are exact";
}

TEST(SetSpecFieldTest, RefusesOtherTypes) {
  QuantSpec spec;
  const auto error_of = [&](std::string_view key, SpecValue value) {
    return MessageOf<InvalidArgument>([&] { SetSpecField(spec, key, value); });
  };
  EXPECT_EQ(error_of("swizzled", 2.0f), "quantize: swizzled must be True or False, got 2");
  EXPECT_EQ(error_of("scale", true), "quantize: scale must be a number, got true");
  EXPECT_EQ(error_of("scale", std::uint64_t{2}), "quantize: scale must be a number, got 2");
  EXPECT_EQ(error_of("seed", 3.0f), "quantize: seed must be an integer from 0 to 2^64 - 1, got 3");
  EXPECT_TRUE(spec == QuantSpec{}) << "a refused value changes nothing";
}

TEST(SpecKeysTest, AreSortedAndSettable) {
  const auto keys = SpecKeys();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    QuantSpec spec;
    const SpecField& field = *FindSpecField(keys[i]);
    const SpecValue value = field.Parse(keys[i] == "four_over_six" ? "mae" : "1");
    EXPECT_TRUE(SetSpecField(spec, keys[i], value)) << keys[i];
    if (i == 0) continue;
    EXPECT_LT(keys[i - 1], keys[i]);
  }
}

TEST(FindSchemeTest, IndexIsThePlaceInTheRegistry) {
  for (std::size_t i = 0; i < kSchemeCount; ++i)
    EXPECT_EQ(SchemeIndex(FindScheme(kSchemes[i].name)), i);
}

}  // namespace
}  // namespace narrowfloat
