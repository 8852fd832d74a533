// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/grouped_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

const PackedBuffer& Of(const GroupedPlan& plan, Role role) {
  return *std::ranges::find(plan.buffers, role,
                            [](const PackedBuffer& buffer) { return buffer.whole.role; });
}

std::vector<std::size_t> OffsetsOf(const GroupedPlan& plan, Role role) {
  std::vector<std::size_t> offsets;
  for (const GroupSlice& slice : Of(plan, role).groups) offsets.push_back(slice.offset);
  return offsets;
}

std::int64_t ItemsOf(const GroupedPlan& plan, Role role) {
  return Of(plan, role).whole.shape.at(0);
}

using Offsets = std::vector<std::size_t>;
constexpr std::size_t kTile = 128, kCols = 256;
const std::vector<Shape> kGroups{{128, 256}, {0, 256}, {384, 256}, {256, 256}};

// Groups begin at rows 0, 128, 128, 512 of 256 columns. Source: docs/numerics.md, "Groups".
TEST(GroupedPlanTest, CodesLieAtTheOffsetsOfTheElements) {
  const Offsets elements{0, kTile * kCols, kTile * kCols, 4 * kTile * kCols};
  for (const char* text :
       {"fp8_e5m2:columnwise=1", "mxfp8_e4m3:columnwise=1", "fp8_block1x128_e4m3:columnwise=1"}) {
    const GroupedPlan plan = PlanGroupedQuantize(ParseQuantSpec(text), kGroups);
    EXPECT_EQ(OffsetsOf(plan, Role::kRowwiseData), elements) << text;
    EXPECT_EQ(OffsetsOf(plan, Role::kColumnwiseData), elements) << text;
    EXPECT_EQ(ItemsOf(plan, Role::kRowwiseData), 768 * 256) << text;
  }
  // Each group is transposed separately.
  const auto plan = PlanGroupedQuantize(ParseQuantSpec("fp8_e4m3:columnwise=1"), kGroups);
  EXPECT_EQ(Of(plan, Role::kColumnwiseData).groups[2], (GroupSlice{kTile * kCols, {256, 384}}));
}

TEST(GroupedPlanTest, PerTensorScalesAndAmaxesLieAtTheGroupsIndex) {
  const GroupedPlan plan = PlanGroupedQuantize(ParseQuantSpec("fp8_e4m3:columnwise=1"), kGroups);
  for (const Role role :
       {Role::kRowwiseScaleInv, Role::kColumnwiseScaleInv, Role::kScale, Role::kAmaxRowwise}) {
    EXPECT_EQ(OffsetsOf(plan, role), (Offsets{0, 1, 2, 3})) << RoleName(role);
    EXPECT_EQ(ItemsOf(plan, role), 4) << RoleName(role);
  }
  EXPECT_EQ(Of(plan, Role::kColumnwiseScaleInv).whole.storage, Role::kRowwiseScaleInv);
}

TEST(GroupedPlanTest, Mxfp8ScalesLieAtTheElementsThatTheyScale) {
  const GroupedPlan plan =
      PlanGroupedQuantize(ParseQuantSpec("mxfp8_e4m3:columnwise=1,swizzled=1"), kGroups);
  const Offsets scales{0, kTile * 8, kTile * 8, 4 * kTile * 8};  // offsets of elements / 32
  EXPECT_EQ(OffsetsOf(plan, Role::kRowwiseScaleInv), scales);
  EXPECT_EQ(OffsetsOf(plan, Role::kColumnwiseScaleInv), scales);
  EXPECT_EQ(ItemsOf(plan, Role::kRowwiseScaleInv), 768 * 8);  // padded shape of all rows
  EXPECT_EQ(Of(plan, Role::kColumnwiseScaleInv).groups[2].shape, (Shape{12, 256}));
  // The scales of all rows are one matrix with padded columns: 5 blocks of 32 become 8.
  const GroupedPlan narrow =
      PlanGroupedQuantize(ParseQuantSpec("mxfp8_e4m3"), std::vector<Shape>{{128, 160}, {256, 160}});
  EXPECT_EQ(OffsetsOf(narrow, Role::kRowwiseScaleInv), (Offsets{0, kTile * 8}));
  EXPECT_EQ(ItemsOf(narrow, Role::kRowwiseScaleInv), 384 * 8);
}

TEST(GroupedPlanTest, BlockScalesArePackedAsTheGroupedKernelsPackThem) {
  const QuantSpec runs = ParseQuantSpec("fp8_block1x128_e4m3:columnwise=1");
  const GroupedPlan one = PlanGroupedQuantize(runs, kGroups);
  // Rowwise, each group has a matrix [K/128][rows]. Columnwise, all share one [rows/128][K].
  EXPECT_EQ(OffsetsOf(one, Role::kRowwiseScaleInv), (Offsets{0, 256, 256, 1024}));
  EXPECT_EQ(Of(one, Role::kRowwiseScaleInv).groups[2].shape, (Shape{2, 384}));
  EXPECT_EQ(ItemsOf(one, Role::kRowwiseScaleInv), 2 * 768);
  EXPECT_EQ(OffsetsOf(one, Role::kColumnwiseScaleInv), (Offsets{0, 256, 256, 4 * kCols}));
  EXPECT_EQ(ItemsOf(one, Role::kColumnwiseScaleInv), 6 * 256);

  const QuantSpec tiles = ParseQuantSpec("fp8_block128x128_e4m3:columnwise=1");
  const GroupedPlan two = PlanGroupedQuantize(tiles, kGroups);
  // Rowwise, all groups share one matrix [rows/128][K/128 padded to 4]. Columnwise, each group has
  // [K/128][rows/128 padded to 4]. The buffer has K/128 * 4 more items for each group but one.
  EXPECT_EQ(OffsetsOf(two, Role::kRowwiseScaleInv), (Offsets{0, 4, 4, 16}));
  EXPECT_EQ(ItemsOf(two, Role::kRowwiseScaleInv), 6 * 4);
  EXPECT_EQ(OffsetsOf(two, Role::kColumnwiseScaleInv), (Offsets{0, 8, 8, 16}));
  EXPECT_EQ(ItemsOf(two, Role::kColumnwiseScaleInv), 2 * 8 + 3 * 2 * 4);
  EXPECT_EQ(ItemsOf(PlanGroupedQuantize(tiles, std::vector<Shape>{{768, 256}}),
                    Role::kColumnwiseScaleInv),
            2 * 8);
}

TEST(GroupedPlanTest, Nvfp4PacksTwoCodesAByteAndHasAmaxesOfItsOwn) {
  const GroupedPlan plan = PlanGroupedQuantize(ParseQuantSpec("nvfp4:columnwise=1"), kGroups);
  const Offsets bytes{0, kTile * kTile, kTile * kTile, 4 * kTile * kTile};
  EXPECT_EQ(OffsetsOf(plan, Role::kRowwiseData), bytes);
  EXPECT_EQ(OffsetsOf(plan, Role::kColumnwiseData), bytes);
  EXPECT_EQ(OffsetsOf(plan, Role::kRowwiseScaleInv),
            (Offsets{0, kTile * 16, kTile * 16, 4 * kTile * 16}));
  EXPECT_EQ(ItemsOf(plan, Role::kRowwiseScaleInv), 768 * 16);
  EXPECT_EQ(OffsetsOf(plan, Role::kAmaxColumnwise), (Offsets{0, 1, 2, 3}));
  const GroupedPlan rows = PlanGroupedQuantize(ParseQuantSpec("nvfp4:row_scaled=1"), kGroups);
  EXPECT_EQ(OffsetsOf(rows, Role::kAmaxRowwise), (Offsets{0, 128, 128, 512}));
  EXPECT_EQ(ItemsOf(rows, Role::kAmaxRowwise), 768);
}

TEST(GroupedPlanTest, GroupsMayDifferInEveryDimension) {
  const std::vector<Shape> shapes{{128, 256}, {256, 128}, {0, 384}, {2, 64, 128}};
  const GroupedPlan plan = PlanGroupedQuantize(ParseQuantSpec("mxfp8_e4m3:columnwise=1"), shapes);
  EXPECT_EQ(OffsetsOf(plan, Role::kRowwiseScaleInv), (Offsets{0, 1024, 2048, 2048}));
  EXPECT_EQ(ItemsOf(plan, Role::kRowwiseScaleInv), (128 * 256 + 256 * 128 + 128 * 128) / 32);
  EXPECT_EQ(ItemsOf(plan, Role::kColumnwiseScaleInv), (128 * 256 + 256 * 128 + 128 * 128) / 32);
  EXPECT_EQ(Of(plan, Role::kRowwiseData).groups[3], (GroupSlice{65536, {2, 64, 128}}));
}

TEST(GroupedPlanTest, NoGroupsMakeEmptyBuffers) {
  for (const SchemeInfo& scheme : kSchemes) {
    const GroupedPlan plan = PlanGroupedQuantize({.scheme = &scheme, .columnwise = true}, {});
    EXPECT_GE(plan.buffers.size(), 4u) << scheme.name;
    for (const PackedBuffer& buffer : plan.buffers)
      EXPECT_EQ(buffer.whole.shape, (Shape{0})) << scheme.name << RoleName(buffer.whole.role);
  }
}

TEST(GroupedPlanTest, RefusesWhatPlanQuantizeRefuses) {
  EXPECT_EQ(
      MessageOf<InvalidArgument>([] {
        PlanGroupedQuantize(ParseQuantSpec("nvfp4"), std::vector<Shape>{{4, 32}, {4, 33}});
      }),
      "quantize: nvfp4 packs two codes in a byte and needs an even number of columns, got 33");
}

TEST(GroupedPlanTest, RefusesGroupsThatTogetherExceedMemory) {
  // The codes exceed memory, or the amaxes of the rows of empty matrices do.
  const std::pair<const char*, Shape> kCases[] = {
      {"fp8_e4m3", {std::int64_t{1} << 56, 8}}, {"nvfp4:row_scaled=1", {std::int64_t{1} << 58, 0}}};
  for (const auto& [spec, shape] : kCases) {
    try {
      PlanGroupedQuantize(ParseQuantSpec(spec), std::vector<Shape>(32, shape));
      FAIL() << spec;
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(),
                   "quantize: the groups together have more elements than memory can address");
    }
  }
}

}  // namespace
}  // namespace narrowfloat
