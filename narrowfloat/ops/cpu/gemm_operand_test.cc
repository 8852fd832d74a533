// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/gemm_operand.h"

#include <gtest/gtest.h>

#include <vector>

namespace narrowfloat {
namespace {

/// A scheme that is not in the registry: two codes per byte, one scale for two lines, and an amax
/// as second-level scale.
struct PackedScheme {
  using Element = E2M1;
  static constexpr BlockShape kBlock{2, 4};
  static constexpr SchemeLayout kLayout{
      .scale_type = ScaleType::kE8M0,
      .rowwise_order = ScaleOrder::kLineMajor,
      .columnwise_order = ScaleOrder::kLineMajor,
      .lines_per_scale = 2,
      .line_multiple = 1,
      .block_multiple = 1,
      .columnwise_transposed = true,
      .swizzles = false,
      .stores_scale = false,
      .amax = AmaxBuffers::kOne,
  };
  static constexpr OptionSet kOptions{}, kOnByDefault{};
  struct TensorState {
    float amax;
  };
  static constexpr TensorState Prepare(float amax, const ScaleOptions&) noexcept { return {amax}; }
  static constexpr BlockScale ScaleBlock(float, const TensorState&) noexcept { return {}; }
  static constexpr float DecodeScale(std::uint32_t scale_inv, const TensorState& state) noexcept {
    return static_cast<float>(scale_inv) * state.amax;
  }
};

// Codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6; codes 8 to 15 are the same with a sign. The low half
// of a byte has the even position's code. Source: OCP MX 1.0, E2M1.
constexpr std::byte kCodes[] = {std::byte{0x10}, std::byte{0x32}, std::byte{0x54},
                                std::byte{0x98}, std::byte{0xBA}, std::byte{0xFC}};
constexpr std::byte kScales[] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{5}};

OperandSource Source(std::size_t lines, std::size_t length, bool positions_are_adjacent,
                     std::vector<float> amaxes) {
  return {{kCodes, 3, kScales, {256, 64, 2, 4, 1}},
          lines,
          length,
          positions_are_adjacent,
          {},
          std::move(amaxes)};
}

using Floats = std::vector<float>;

TEST(GemmOperandTest, PackedCodesOfALineThatLiesInARow) {
  const SchemeOperand<PackedScheme> operand(Source(2, 6, true, {1.0f}));
  EXPECT_EQ(operand.slab, 4u);
  Floats panel(12, 9.0f);
  operand.Values({0, 2, 0, 6}, {6, 1}, panel.data());
  EXPECT_EQ(panel, (Floats{0, 0.5f, 1, 1.5f, 2, 3, -0.0f, -0.5f, -1, -1.5f, -2, -6}));
  Floats part(6, 9.0f);  // begins at an odd position, with a step of two floats
  operand.Values({1, 2, 3, 6}, {100, 2}, part.data());
  EXPECT_EQ(part, (Floats{-1.5f, 9, -2, 9, -6, 9}));
}

TEST(GemmOperandTest, PackedCodesOfLinesThatLieInColumns) {
  const SchemeOperand<PackedScheme> operand(Source(6, 2, false, {1.0f}));
  Floats panel(6, 9.0f);
  operand.Values({1, 4, 0, 2}, {1, 3}, panel.data());
  EXPECT_EQ(panel, (Floats{0.5f, 1, 1.5f, -0.5f, -1, -1.5f}));
}

TEST(GemmOperandTest, ScalesOfLinesThatShareThemUnderOneAmax) {
  const SchemeOperand<PackedScheme> operand(Source(4, 8, true, {10.0f}));
  Floats scales(3);
  operand.Scales(1, 4, 1, scales.data());
  EXPECT_EQ(scales, (Floats{20, 50, 50}));
}

TEST(GemmOperandTest, ScalesUnderOneAmaxPerLine) {
  const SchemeOperand<PackedScheme> operand(Source(4, 8, true, {1, 10, 100, 1000}));
  Floats scales(4);
  operand.Scales(0, 4, 0, scales.data());
  EXPECT_EQ(scales, (Floats{1, 10, 300, 3000}));
}

}  // namespace
}  // namespace narrowfloat
