// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/block_fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/io/testing.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

ForeignWeight Form(FileDType codes, FileDType scale, std::size_t rows, std::size_t cols,
                   BlockShape block) {
  ForeignWeight form{.codes = codes, .scale = scale};
  form.rows = rows;
  form.cols = cols;
  form.block = block;
  form.shape.assign({static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)});
  return form;
}

/// An MXFP4 weight that owns its memory.
struct Mxfp4Weight {
  std::vector<std::byte> codes;
  CanonicalWeight weight;

  Mxfp4Weight(std::size_t rows, std::size_t cols) : codes(rows * cols / 2) {
    weight.form = Form(FileDType::kU8, FileDType::kF8E8M0, rows, cols, {1, 32});
    weight.codes = codes;
    weight.scales.assign(rows * ((cols + 31) / 32), std::byte{127});
  }

  std::size_t Size() const { return 2 * codes.size(); }

  void SetCode(std::size_t item, std::uint32_t code) {
    codes[item / 2] &= static_cast<std::byte>(0xFu << (1 - item % 2) * 4);
    codes[item / 2] |= static_cast<std::byte>(code << item % 2 * 4);
  }
};

std::vector<float> Values(const CanonicalWeight& weight) {
  std::vector<float> values(weight.form.rows * weight.form.cols);
  DecodeWeight(weight.form, {weight.codes, weight.scales, {}}, DType::kFloat32,
               std::as_writable_bytes(std::span(values)), 1);
  return values;
}

/// Compares the bits of values, so that -0 and 0 differ.
void ExpectSameValues(const CanonicalWeight& a, const CanonicalWeight& b) {
  const std::vector<float> before = Values(a), after = Values(b);
  ASSERT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
}

TEST(BlockFp8Test, ExponentsThatSpanFourteenKeepEveryValue) {
  std::mt19937 random(1);
  Mxfp4Weight mx(150, 320);
  for (const int base : {20, 110, 230}) {
    for (std::size_t i = 0; i < mx.Size(); ++i) mx.SetCode(i, random() % 16);
    for (std::byte& scale : mx.weight.scales) {
      scale = static_cast<std::byte>(base + static_cast<int>(random() % 15));
    }
    EXPECT_TRUE(FitByExponents(mx.weight.form, mx.weight.scales));
    ASSERT_FALSE(FindUnfitTile(mx.weight));
    std::vector<std::byte> codes;
    const CanonicalWeight block = Mxfp4ToBlockFp8(mx.weight, codes, 1);
    EXPECT_EQ(block.scales.size(), 2u * 3u);
    ExpectSameValues(mx.weight, block);
    ExpectSameValues(mx.weight, WithFp32Scales(block));
  }
}

TEST(BlockFp8Test, ATileThatDoesNotFitIsNamed) {
  Mxfp4Weight mx(256, 256);
  for (std::size_t i = 0; i < mx.Size(); ++i) mx.SetCode(i, i % 16);
  mx.weight.scales[200 * 8 + 3] = std::byte{127 + 15};
  EXPECT_FALSE(FitByExponents(mx.weight.form, mx.weight.scales));
  const auto unfit = FindUnfitTile(mx.weight);
  ASSERT_TRUE(unfit);
  EXPECT_EQ(unfit->row, 1u);
  EXPECT_EQ(unfit->col, 0u);
  mx.weight.scales[200 * 8 + 3] = std::byte{0xFF};
  EXPECT_TRUE(FindUnfitTile(mx.weight)) << "NaN";
}

TEST(BlockFp8Test, BlocksOfZerosDoNotCount) {
  Mxfp4Weight mx(128, 128);
  for (std::size_t i = 32; i < mx.Size(); ++i) mx.SetCode(i, i % 16);
  for (std::size_t i = 0; i < 32; ++i) mx.SetCode(i, i % 2 * 8);
  mx.weight.scales[0] = std::byte{0};
  EXPECT_FALSE(FitByExponents(mx.weight.form, mx.weight.scales));
  ASSERT_FALSE(FindUnfitTile(mx.weight));
  std::vector<std::byte> codes;
  ExpectSameValues(mx.weight, Mxfp4ToBlockFp8(mx.weight, codes, 1));
}

TEST(BlockFp8Test, BothEndsOfTheExponentsFitIfTheirValuesDo) {
  for (const std::byte scale : {std::byte{0}, std::byte{5}, std::byte{254}}) {
    Mxfp4Weight mx(64, 64);
    for (std::size_t i = 0; i < mx.Size(); ++i) mx.SetCode(i, i % 8 == 7 ? 0 : i % 8);
    for (std::byte& each : mx.weight.scales) each = scale;
    ASSERT_FALSE(FindUnfitTile(mx.weight));
    std::vector<std::byte> codes;
    ExpectSameValues(mx.weight, Mxfp4ToBlockFp8(mx.weight, codes, 1));
  }
}

TEST(BlockFp8Test, PowersOfTwoKeepTheirCodesAndOthersSayWhatIsLost) {
  std::vector<std::byte> codes(std::size_t{200} * 130), out;
  std::mt19937 random(2);
  for (std::byte& code : codes) code = static_cast<std::byte>(random() % 0x7F);
  std::vector<float> scales = {0.25f, 2.0f, 1.0f, 0x1p-20f};
  CanonicalWeight weight;
  weight.form = Form(FileDType::kF8E4M3, FileDType::kF32, 200, 130, {128, 128});
  weight.codes = codes;
  const auto set = [&] {
    const auto bytes = std::as_bytes(std::span(scales));
    weight.scales.assign(bytes.begin(), bytes.end());
  };
  set();
  Loss loss;
  const CanonicalWeight same = ToPowerOfTwoScales(weight, out, 1, loss);
  EXPECT_EQ(out, codes);
  EXPECT_EQ(loss.values, 0u);
  ExpectSameValues(weight, same);
  scales[0] = 0.3f;
  set();
  const CanonicalWeight rounded = ToPowerOfTwoScales(weight, out, 2, loss);
  EXPECT_EQ(loss.values, 200u * 130u);
  EXPECT_GT(loss.changed, 0u);
  EXPECT_LE(loss.changed, 128u * 128u);
  const std::vector<float> before = Values(weight), after = Values(rounded);
  for (std::size_t i = 0; i < before.size(); ++i) {
    // The bound is half a step of a 3-bit mantissa, or half a step of subnormal numbers.
    const float least = rounded.form.scale == FileDType::kF8E8M0 ? 0x1p-10f * 0.5f : 0.0f;
    ASSERT_LE(std::abs(after[i] - before[i]), std::max(std::abs(before[i]) / 16, least)) << i;
  }
  scales[1] = -1;
  set();
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { ToPowerOfTwoScales(weight, out, 1, loss); }),
            "the scale of the tile [0, 1] must be positive and finite, or zero over codes of zero, "
            "got -1");
}

TEST(BlockFp8Test, AScaleOfZeroBecomesAPowerOfTwoOverZerosOnly) {
  std::vector<std::byte> codes(std::size_t{2} * 128 * 256, std::byte{0x38}), out;
  const auto set_tile = [&](std::byte code) {  // tile [0, 1] of matrix 1
    for (std::size_t row = 128; row < 256; ++row) {
      for (std::size_t col = 128; col < 256; ++col) codes[row * 256 + col] = code;
    }
  };
  CanonicalWeight weight;
  weight.form = Form(FileDType::kF8E4M3, FileDType::kF32, 128, 256, {128, 128});
  weight.form.matrices = 2;
  weight.form.shape = {2, 128, 256};
  weight.codes = codes;
  for (const float other : {0.25f, 0.3f}) {  // tiles that keep their codes, and tiles that do not
    const std::vector<float> scales = {1.0f, other, 2.0f, 0.0f};
    const auto bytes = std::as_bytes(std::span(scales));
    weight.scales.assign(bytes.begin(), bytes.end());
    EXPECT_FALSE(HasPositiveScales(FileDType::kF32, weight.scales));
    Loss loss;
    for (const std::byte zero : {std::byte{0}, std::byte{0x80}}) {
      set_tile(zero);
      const CanonicalWeight result = ToPowerOfTwoScales(weight, out, 1, loss);
      EXPECT_EQ(result.scales[3], std::byte{0});
      EXPECT_EQ(result.codes[std::size_t{128} * 256 + 128], zero);
    }
    set_tile(std::byte{1});
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { CheckTileScales(weight); }),
              "the scale of the tile [0, 1] of matrix 1 must be positive and finite, or zero over "
              "codes of zero, got 0");
  }
}

}  // namespace
}  // namespace narrowfloat::io
