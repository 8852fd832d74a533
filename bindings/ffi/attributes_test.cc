// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/attributes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::xla_ffi {
namespace {

TEST(AttributesTest, ModesAreSchemes) {
  const std::pair<ScalingMode, std::vector<std::string_view>> modes[] = {
      {ScalingMode::NO_SCALING, {}},
      {ScalingMode::DELAYED_TENSOR_SCALING, {"fp8_e4m3", "fp8_e5m2"}},
      {ScalingMode::CURRENT_TENSOR_SCALING, {"fp8_e4m3", "fp8_e5m2"}},
      {ScalingMode::MXFP8_1D_SCALING, {"mxfp8_e4m3", "mxfp8_e5m2"}},
      {ScalingMode::NVFP4_1D_SCALING, {"nvfp4"}},
      {ScalingMode::NVFP4_2D_SCALING, {"nvfp4_2d"}},
  };
  for (const auto& [mode, names] : modes) {
    std::vector<std::string_view> found;
    for (const SchemeInfo* scheme : SchemesOf(mode)) found.push_back(scheme->name);
    EXPECT_EQ(found, names);
  }
}

TEST(AttributesTest, NumbersAreThoseOfCompiledPrograms) {
  for (std::int64_t i = 0; i < 6; ++i)
    EXPECT_EQ(static_cast<std::int64_t>(kScalingModes[i].value), i) << kScalingModes[i].name;
  for (std::int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(static_cast<std::int64_t>(kQuantizeLayouts[i].value), i) << kQuantizeLayouts[i].name;
}

TEST(AttributesTest, SpecsSayWhatAttributesSay) {
  const QuantSpec spec =
      MakeSpec("quantize", {ScalingMode::NVFP4_1D_SCALING, QuantizeLayout::COLWISE, true, true},
               E2M1::kName);
  EXPECT_EQ(PrintQuantSpec(spec), "nvfp4:columnwise=1,rht=1,rowwise=0,stochastic_rounding=1");
}

TEST(AttributesTest, OthersAreRefused) {
  const auto spec_of = [](std::int64_t mode, std::int64_t layout, bool rht = false) {
    return MessageOf<InvalidArgument>([&] {
      MakeSpec("quantize",
               {static_cast<ScalingMode>(mode), static_cast<QuantizeLayout>(layout), false, rht},
               E4M3::kName);
    });
  };
  EXPECT_EQ(spec_of(-1, 0), "quantize: scaling_mode must be a number from 0 to 5, got -1");
  EXPECT_EQ(spec_of(2, 3), "quantize: q_layout must be a number from 0 to 2, got 3");
  EXPECT_EQ(spec_of(0, 0), "quantize: the scaling mode must quantize, got NO_SCALING");
  EXPECT_EQ(spec_of(4, 0), "quantize: NVFP4_1D_SCALING needs e2m1 codes, got e4m3");
  EXPECT_EQ(spec_of(2, 0, true),
            "quantize: mxfp8_e4m3 does not take the option 'rht'; it takes: columnwise, "
            "rowwise, swizzled");
}

TEST(AttributesTest, DimensionsSplitInTwo) {
  EXPECT_EQ(SplitShape("quantize", {2, 3, 4}, 1), (MatrixShape{2, 12}));
  EXPECT_EQ(SplitShape("quantize", {2, 3, 4}, -1), (MatrixShape{6, 4}));
  EXPECT_EQ(SplitShape("quantize", {2, 0, 4}, 2), (MatrixShape{0, 4}));
  for (const std::int64_t axis : {-4, -3, 0, 3}) {
    EXPECT_EQ(MessageOf<InvalidArgument>([&] {
                SplitShape("quantize", {2, 3, 4}, axis);
              }),
              "quantize: flatten_axis must split the dimensions in two, got " +
                  std::to_string(axis) + " for shape 2x3x4");
  }
  EXPECT_THROW(SplitShape("quantize", {1LL << 40, 1LL << 40}, 1), InvalidArgument);
}

TEST(AttributesTest, TheWorkspaceHoldsAStripOf128RowsEach) {
  const auto shape = [](std::size_t rows, std::size_t cols) {
    return GetDBiasQuantizeWorkspaceSizes(rows, cols, CoreDType::kBFloat16, CoreDType::kFloat8E4M3,
                                          CoreDType::kFloat32, ScalingMode::MXFP8_1D_SCALING,
                                          QuantizeLayout::ROWWISE)
        .shape;
  };
  EXPECT_EQ(shape(129, 64), (std::vector<std::size_t>{2, 64}));
  EXPECT_EQ(shape(0, 64), (std::vector<std::size_t>{1}));
}

}  // namespace
}  // namespace narrowfloat::xla_ffi
