// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/foreign_weight.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

using enum FileDType;

constexpr WeightNames kNames = {.codes = ".weight", .scale = ".weight_scale", .plain = ".weight"};

ForeignWeight Describe(const TensorEntry& codes, const TensorEntry& scale,
                       std::optional<BlockShape> block = std::nullopt) {
  return DescribeWeight("read", kNames, codes, scale, nullptr, {.block = block});
}

/// Returns the format of FP8 codes with scales of the shape `scale`, or "refused".
std::string FormatFor(const Shape& codes, const Shape& scale,
                      std::optional<BlockShape> block = std::nullopt, FileDType dtype = kF32) {
  const TensorEntry entry{.name = "a.weight", .dtype = kF8E4M3, .shape = codes};
  try {
    return FormatText(
        Describe(entry, {.name = "a.weight_scale", .dtype = dtype, .shape = scale}, block));
  } catch (const InvalidArgument& error) {
    return "refused";
  }
}

TEST(ForeignWeightTest, ScalesOfRowsAreNoRowOfTiles) {
  for (const Shape& rows : std::vector<Shape>{{32, 1}, {32}}) {
    EXPECT_EQ(FormatFor({32, 4096}, rows), "e4m3 row F32");
  }
  EXPECT_EQ(FormatFor({32, 4096}, {1, 32}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({32, 4096}, {1, 1, 32, 1}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({33, 4096}, {32}), "refused") << "a row of tiles has two dimensions";
  EXPECT_EQ(FormatFor({32, 4096}, {32, 32}), "e4m3 1x128 F32");
  EXPECT_EQ(FormatFor({4096, 32}, {32, 1}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({4096, 32}, {1, 32}), "refused") << "one per column";
  EXPECT_EQ(FormatFor({32, 1024}, {32, 1}, {}, kF8E8M0), "refused");
  EXPECT_EQ(FormatFor({8, 1024}, {1, 8}, {}, kF8E8M0), "e4m3 128x128 F8_E8M0");
}

TEST(ForeignWeightTest, OneScaleHasAnyNumberOfDimensions) {
  for (const Shape& one : std::vector<Shape>{{}, {1}, {1, 1}, {1, 1, 1, 1}}) {
    EXPECT_EQ(FormatFor({200, 320}, one), "e4m3 tensor F32") << ShapeText(one);
  }
  EXPECT_EQ(FormatFor({64, 96}, {1}), "e4m3 tensor F32");
  EXPECT_EQ(FormatFor({64, 96}, {1, 1}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({3, 200, 320}, {1}), "e4m3 tensor F32");
}

TEST(ForeignWeightTest, StackedMatricesHaveScalesEach) {
  for (const Shape& whole : std::vector<Shape>{{3}, {3, 1}, {3, 1, 1}}) {
    EXPECT_EQ(FormatFor({3, 200, 320}, whole), "e4m3 matrix F32") << ShapeText(whole);
  }
  for (const Shape& rows : std::vector<Shape>{{3, 200}, {3, 200, 1}}) {
    EXPECT_EQ(FormatFor({3, 200, 320}, rows), "e4m3 row F32") << ShapeText(rows);
  }
  for (const Shape& tiles : std::vector<Shape>{{3, 2, 3}, {3, 2, 1, 3, 1}}) {
    EXPECT_EQ(FormatFor({3, 200, 320}, tiles), "e4m3 128x128 F32") << ShapeText(tiles);
  }
  EXPECT_EQ(FormatFor({2, 3, 200, 320}, {2, 3, 2, 3}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({2, 3, 200, 320}, {6, 2, 3}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({1, 200, 320}, {2, 3}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({3, 200, 320}, {2, 3}), "refused");
}

TEST(ForeignWeightTest, WhatTheConfigurationSaysComesFirst) {
  EXPECT_EQ(FormatFor({1, 64}, {1, 1}), "e4m3 128x128 F32");
  EXPECT_EQ(FormatFor({1, 64}, {1, 1}, kWholeTensor), "e4m3 tensor F32");
  EXPECT_EQ(FormatFor({64, 96}, {1, 1}, kWholeTensor), "e4m3 tensor F32");
  EXPECT_EQ(FormatFor({64, 96}, {64, 1}, kWholeRow), "e4m3 row F32");
  EXPECT_EQ(FormatFor({64, 96}, {2, 3}, BlockShape{32, 32}), "e4m3 32x32 F32");
  EXPECT_EQ(FormatFor({200, 320}, {2, 3}, kWholeRow), "e4m3 128x128 F32") << "where it fits";
}

TEST(ForeignWeightTest, ScalesOfTwoMeaningsNeedAConfiguration) {
  const TensorEntry codes{.name = "a.weight", .dtype = kF8E4M3, .shape = {1, 32, 4096}};
  const TensorEntry scale{.name = "a.weight_scale", .dtype = kF32, .shape = {1, 32}};
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Describe(codes, scale); }),
            "read: 'a.weight_scale' of F32 1x32 needs a configuration that says its blocks, those "
            "of 'a.weight' (F8_E4M3 1x32x4096) may be 128x128 or 1x4096");
  EXPECT_EQ(FormatText(Describe(codes, scale, kWholeRow)), "e4m3 row F32");
  EXPECT_EQ(FormatText(Describe(codes, scale, BlockShape{128, 128})), "e4m3 128x128 F32");
}

TEST(ForeignWeightTest, BytesWithFloatScalesAreNoCodes) {
  const TensorEntry codes{.name = "a.weight", .dtype = kI8, .shape = {64, 64}};
  const TensorEntry scale{.name = "a.weight_scale", .dtype = kF32, .shape = {64, 1}};
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Describe(codes, scale); }),
            "read: 'a.weight' (I8) must hold FP8 codes to have scales of F32, as 'a.weight_scale' "
            "does");
}

}  // namespace
}  // namespace narrowfloat::io
