// SPDX-License-Identifier: Apache-2.0
// Compares groups with Quantize, and Requantize with Dequantize and Quantize. Tests
// BlockScalesToMxfp8.
#include "narrowfloat/ops/grouped.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <deque>
#include <random>

#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"
#include "tests/conformance/float_settings.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

constexpr std::int64_t kCols = 40;

/// Returns a copy of one group's rows.
FloatTensor GroupOf(const FloatTensor& in, std::int64_t first, std::int64_t rows) {
  FloatTensor group(in.dtype(), {rows, kCols});
  for (std::size_t i = 0; i < group.size(); ++i)
    group.SetBits(i, in.Bits(static_cast<std::size_t>(first * kCols) + i));
  return group;
}

std::string ErrorOf(const ConstTensorView& in, const std::vector<std::int64_t>& rows,
                    const std::vector<QuantizedView>& outs) {
  return MessageOf<InvalidArgument>([&] { GroupedQuantize(in, rows, outs); });
}

TEST(GroupedQuantizeTest, EachGroupIsQuantizedAsIfAlone) {
  const std::vector<std::int64_t> rows{6, 0, 130, 2, 32, 30};
  std::mt19937_64 random(RunSeed());
  for (const Placement placement : {Placement::kContiguous, Placement::kReversedRows}) {
    FloatTensor in(DType::kBFloat16, {200, kCols}, placement);
    FillWithSpecials(in, random);
    for (const SchemeInfo& scheme : kSchemes) {
      QuantSpec spec{.scheme = &scheme, .columnwise = true};
      spec.stochastic_rounding = scheme.options.Has(Option::kStochasticRounding);
      for (const int threads : {1, 2, 8}) {
        std::deque<QuantizedBuffers> got;
        std::vector<QuantizedView> outs;
        for (const std::int64_t count : rows)
          outs.push_back(got.emplace_back(spec, Shape{count, kCols}).view);
        GroupedQuantize(in.ConstView(), rows, outs, {.threads = threads});
        std::int64_t first = 0;
        for (std::size_t g = 0; g < rows.size(); ++g) {
          QuantizedBuffers expected(spec, {rows[g], kCols});
          expected.view.spec.offset = spec.stochastic_rounding ? g : 0;
          Quantize(GroupOf(in, first, rows[g]).ConstView(), expected.view);
          EXPECT_EQ(Difference(expected, got[g]), "") << fmt::format(
              "{} group {} with {} threads, NF_TEST_SEED={}", scheme.name, g, threads, RunSeed());
          first += rows[g];
        }
      }
    }
  }
}

TEST(GroupedQuantizeTest, RefusesBeforeItWrites) {
  const QuantSpec spec{.scheme = &FindScheme("mxfp8_e4m3")};
  const FloatTensor in(DType::kFloat32, {8, kCols});
  QuantizedBuffers four(spec, {4, kCols}), other(spec, {4, kCols}), five(spec, {5, kCols});
  const QuantizedBuffers untouched(spec, {4, kCols});
  const auto error_of = [&](const std::vector<std::int64_t>& rows,
                            const std::vector<QuantizedView>& outs) {
    return ErrorOf(in.ConstView(), rows, outs);
  };
  EXPECT_EQ(error_of({4, 4}, {four.view}),
            "grouped_quantize: needs an output for each of the 2 groups, got 1");
  EXPECT_EQ(error_of({4, 5}, {four.view, five.view}),
            "grouped_quantize: group 1 must end within the input's 8 rows, got an end at row 9");
  EXPECT_EQ(error_of({4}, {four.view}),
            "grouped_quantize: the groups must have the input's 8 rows together, got 4");
  EXPECT_EQ(error_of({-1, 9}, {four.view, five.view}),
            "grouped_quantize: group 0 must have 0 rows or more, got -1");
  EXPECT_EQ(
      error_of({4, 4}, {four.view, five.view}),
      "grouped_quantize: the output of group 1 must have shape 4x40 as the group has, got 5x40");
  EXPECT_EQ(Difference(untouched, four), "");
  EXPECT_EQ(error_of({4, 4}, {four.view, other.view}), "no error");
}

/// Checks packed groups of different shapes: each group has the bytes of Quantize at its planned
/// offset, and no other byte is written.
TEST(GroupedQuantizeTest, PackedGroupsHaveTheBytesOfQuantizeWhereThePlanSays) {
  const std::vector<Shape> shapes{{6, kCols}, {0, kCols}, {130, 66}, {2, 32}, {48, 2}};
  std::mt19937_64 random(RunSeed());
  std::deque<FloatTensor> tensors;
  std::vector<ConstTensorView> ins;
  for (const Shape& shape : shapes) {
    FillWithSpecials(tensors.emplace_back(DType::kFloat32, shape), random);
    ins.push_back(tensors.back().ConstView());
  }
  for (const SchemeInfo& scheme : kSchemes) {
    const QuantSpec spec{.scheme = &scheme, .columnwise = true};
    const GroupedPlan plan = PlanGroupedQuantize(spec, shapes);
    constexpr std::byte kUntouched{0xA7};
    std::array<std::vector<std::byte>, kRoleCount> memory;
    std::array<std::byte*, kRoleCount> packed{};
    for (const PackedBuffer& buffer : plan.buffers) {
      const auto role = static_cast<std::size_t>(buffer.whole.role);
      memory[role].assign(BufferBytes(buffer.whole) + 64, kUntouched);
      packed[role] = memory[role].data();
    }
    GroupedQuantize(ins, BindGroups(plan, packed), {.threads = 3});
    for (const PackedBuffer& buffer : plan.buffers) {
      if (buffer.whole.storage != buffer.whole.role) continue;
      std::vector<std::byte> expected(BufferBytes(buffer.whole) + 64, kUntouched);
      for (std::size_t g = 0; g < shapes.size(); ++g) {
        QuantizedBuffers alone(spec, shapes[g]);
        Quantize(ins[g], alone.view);
        if (alone.Bytes(buffer.whole.role) == 0) continue;
        std::memcpy(expected.data() + buffer.groups[g].offset * ItemSize(buffer.whole.dtype),
                    alone.Data(buffer.whole.role), alone.Bytes(buffer.whole.role));
      }
      EXPECT_EQ(memory[static_cast<std::size_t>(buffer.whole.role)], expected)
          << scheme.name << " " << RoleName(buffer.whole.role) << ", NF_TEST_SEED=" << RunSeed();
    }
  }
}

TEST(GroupedQuantizeTest, RefusesGroupsOverAnInputOfAnotherGroup) {
  const QuantSpec spec{.scheme = &FindScheme("mxfp8_e4m3")};
  FloatTensor first(DType::kFloat32, {4, 32}), second(DType::kFloat32, {4, 32});
  QuantizedBuffers apart(spec, {4, 32}), over(spec, {4, 32});
  over.view[Role::kRowwiseData].data = second.View().data;
  const std::vector<ConstTensorView> ins{first.ConstView(), second.ConstView()};
  EXPECT_EQ(MessageOf<InvalidArgument>([&] {
              GroupedQuantize(ins, std::vector<QuantizedView>{over.view, apart.view});
            }),
            "grouped_quantize: buffers of group 0 must not overlap the input");
}

TEST(RequantizeTest, IsDequantizeAndQuantize) {
  std::mt19937_64 random(RunSeed());
  FloatTensor in(DType::kFloat32, {48, kCols});
  FillWithSpecials(in, random, Range::kNumbers);
  for (const SchemeInfo& from : kSchemes) {
    QuantizedBuffers source({.scheme = &from}, in.shape());
    Quantize(in.ConstView(), source.view);
    for (const SchemeInfo& to : kSchemes) {
      for (const DType between : {DType::kFloat32, DType::kBFloat16}) {
        const QuantSpec spec{.scheme = &to, .columnwise = true};
        FloatTensor values(between, in.shape());
        QuantizedBuffers expected(spec, in.shape()), got(spec, in.shape());
        Dequantize(source.view, values.View());
        Quantize(values.ConstView(), expected.view);
        Requantize(source.view, got.view, between);
        EXPECT_EQ(Difference(expected, got), "")
            << from.name << " to " << to.name << ", NF_TEST_SEED=" << RunSeed();
      }
    }
  }
}

TEST(BlockScalesToMxfp8Test, RepeatsExponentsInTiles) {
  const QuantSpec spec{.scheme = &FindScheme("fp8_block128x128_e4m3")};
  QuantizedBuffers blocks(spec, {130, 256});
  // Tiles of 128 rows by 128 columns: [row tile][column tile, padded to 4].
  const float scales[] = {0x1p-3f, 0x1p5f, 0.0f, 0.0f, 0x1p0f, 0x1p-126f, 0.0f, 0.0f};
  std::memcpy(blocks.Data(Role::kRowwiseScaleInv), scales, sizeof scales);
  const Shape shape = Mxfp8ScalesShape(blocks.view, Direction::kRowwise);
  ASSERT_EQ(shape, (Shape{256, 8}));
  std::vector<std::byte> out(2048, std::byte{0xEE});  // 256 lines, 8 blocks
  BlockScalesToMxfp8(blocks.view, Direction::kRowwise, {out.data(), DType::kUInt8, shape, {}});
  for (std::size_t row = 0; row < 256; ++row) {
    for (std::size_t block = 0; block < 8; ++block) {
      const std::size_t at =
          (row / 128 * 2 + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
      const unsigned expected = row >= 130  ? 0u
                                : row < 128 ? (block < 4 ? 124u : 132u)
                                : block < 4 ? 127u
                                            : 1u;
      EXPECT_EQ(std::to_integer<unsigned>(out[at]), expected) << row << ", " << block;
    }
  }
}

TEST(BlockScalesToMxfp8Test, KeepsSubnormalScalesUnderAnyFloatSettings) {
  QuantizedBuffers blocks({.scheme = &FindScheme("fp8_block1x128_e4m3")}, {1, 128});
  const float scale = 0x1p-127f;
  std::memcpy(blocks.Data(Role::kRowwiseScaleInv), &scale, sizeof scale);
  const Shape shape = Mxfp8ScalesShape(blocks.view, Direction::kRowwise);
  for (const FloatSettings& settings : AllFloatSettings()) {
    std::vector<std::byte> out(512, std::byte{0xEE});
    settings.Apply();
    const std::string message = MessageOf([&] {
      BlockScalesToMxfp8(blocks.view, Direction::kRowwise, {out.data(), DType::kUInt8, shape, {}});
    });
    FloatSettings{}.Apply();
    EXPECT_EQ(message, "no error");
    EXPECT_EQ(out[0], std::byte{0}) << "the exponent of 2^-127";
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
