// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/closest_name.h"

#include <gtest/gtest.h>

#include <array>

namespace narrowfloat {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"fp8_e4m3", "mxfp8_e4m3", "mxfp8_e5m2",
                                                    "nvfp4"};

TEST(ClosestNameTest, ABeginningComesFirst) {
  EXPECT_EQ(ClosestName("mxfp8", kNames), "mxfp8_e4m3");
  EXPECT_EQ(ClosestName("MXFP8_E5", kNames), "mxfp8_e5m2");
}

TEST(ClosestNameTest, AtMostOneEditPerThreeCharacters) {
  EXPECT_EQ(ClosestName("nvfp5", kNames), "nvfp4");
  EXPECT_EQ(ClosestName("nvpf4", kNames), "nvfp4") << "a swap is one edit";
  EXPECT_EQ(ClosestName("vnfp4", kNames), "nvfp4");
  EXPECT_EQ(ClosestName("vnfp5", kNames), "");
  EXPECT_EQ(ClosestName("fnvp4", kNames), "");
  EXPECT_EQ(ClosestName("mxfp8-e5m2", kNames), "mxfp8_e5m2");
  EXPECT_EQ(ClosestName("xfp8_e4m3", kNames), "fp8_e4m3") << "of equally near ones the first";
  EXPECT_EQ(ClosestName("int8", kNames), "");
}

TEST(ClosestNameTest, OtherTextsHaveNone) {
  EXPECT_EQ(ClosestName("", kNames), "");
  EXPECT_EQ(ClosestName("m", kNames), "");
  EXPECT_EQ(ClosestName(std::string(100000, 'n'), kNames), "");
  EXPECT_EQ(ClosestName("nvfp4", {}), "");
}

TEST(ClosestNameTest, AMessageNamesIt) {
  EXPECT_EQ(DidYouMean("Nvfp4", kNames), " (did you mean 'nvfp4'?)");
  EXPECT_EQ(DidYouMean("abacus", kNames), "");
}

}  // namespace
}  // namespace narrowfloat
