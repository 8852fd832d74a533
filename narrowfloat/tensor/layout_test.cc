// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/layout.h"

#include <gtest/gtest.h>

#include <vector>

#include "narrowfloat/tensor/quant_spec.h"

namespace narrowfloat {
namespace {

const SchemeInfo& Mx() {
  return FindScheme("mxfp8_e4m3");
}

// Computed by hand from the formula in layout.cc, for two tiles along the blocks.
TEST(ScaleStridesTest, KnownSwizzledPlaces) {
  struct Known {
    std::size_t line, block, place;
    const char* why;
  };
  constexpr Known kKnown[] = {
      {0, 0, 0, "the corner"},
      {0, 3, 3, "blocks of a tile lie next to each other"},
      {1, 0, 16, "lines 16 bytes apart"},
      {32, 0, 4, "the second quarter of the lines lies between"},
      {33, 2, 22, "all three"},
      {127, 3, 511, "last of a tile"},
      {0, 4, 512, "next tile along the blocks"},
      {128, 0, 1024, "next row of tiles"},
      {200, 7, 1675, "anywhere"},
  };
  const ScaleGrid grid = MakeScaleGrid(Mx(), Direction::kRowwise, {256, 256});
  const ScaleStrides strides = MakeScaleStrides(grid, ScalePlacement::kSwizzled);
  for (const Known& known : kKnown)
    EXPECT_EQ(strides.LineOffset(known.line) + strides.BlockOffset(known.block), known.place)
        << known.why;
}

TEST(ScaleStridesTest, EveryPlacementIsAPermutation) {
  for (const SchemeInfo& scheme : kSchemes) {
    for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
      for (const ScalePlacement placement : {ScalePlacement::kCompact, ScalePlacement::kSwizzled}) {
        if (placement == ScalePlacement::kSwizzled && !scheme.layout.swizzles) continue;
        const ScaleGrid grid = MakeScaleGrid(scheme, direction, {300, 700});
        const ScaleStrides strides = MakeScaleStrides(grid, placement);
        std::vector<int> hits(grid.Items());
        for (std::size_t i = 0; i < grid.padded_lines; ++i) {
          for (std::size_t j = 0; j < grid.padded_blocks; ++j)
            ++hits.at(strides.LineOffset(i) + strides.BlockOffset(j));
        }
        EXPECT_EQ(hits, std::vector<int>(grid.Items(), 1)) << scheme.name;
      }
    }
  }
}

TEST(ScaleStridesTest, CompactIsRowMajorAsStored) {
  const ScaleGrid rowwise = MakeScaleGrid(Mx(), Direction::kRowwise, {130, 320});
  const ScaleStrides row = MakeScaleStrides(rowwise, ScalePlacement::kCompact);
  EXPECT_EQ(row.LineOffset(129) + row.BlockOffset(9), 129u * 12 + 9);
  const ScaleGrid columnwise = MakeScaleGrid(Mx(), Direction::kColumnwise, {320, 130});
  const ScaleStrides column = MakeScaleStrides(columnwise, ScalePlacement::kCompact);
  EXPECT_EQ(column.LineOffset(129) + column.BlockOffset(9), 9u * 256 + 129);
}

TEST(ScaleGridTest, CountsShortBlocksAndPads) {
  const ScaleGrid rowwise = MakeScaleGrid(Mx(), Direction::kRowwise, {65, 48});
  EXPECT_EQ(rowwise.lines, 65u);
  EXPECT_EQ(rowwise.blocks, 2u);
  EXPECT_EQ(rowwise.StoredShape(), (MatrixShape{128, 4}));
  const ScaleGrid columnwise = MakeScaleGrid(Mx(), Direction::kColumnwise, {65, 48});
  EXPECT_EQ(columnwise.lines, 48u);
  EXPECT_EQ(columnwise.blocks, 3u);
  EXPECT_EQ(columnwise.StoredShape(), (MatrixShape{4, 128}));
}

TEST(ScaleGridTest, AWholeTensorHasOneScale) {
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    const ScaleGrid grid = MakeScaleGrid(FindScheme("fp8_e5m2"), direction, {65, 48});
    EXPECT_EQ(grid.StoredShape(), (MatrixShape{1, 1}));
  }
}

TEST(ScaleGridTest, EmptyTensorsHaveNoScales) {
  EXPECT_EQ(MakeScaleGrid(Mx(), Direction::kRowwise, {0, 64}).StoredShape(), (MatrixShape{0, 4}));
  EXPECT_EQ(MakeScaleGrid(Mx(), Direction::kColumnwise, {0, 64}).StoredShape(),
            (MatrixShape{0, 128}));
}

}  // namespace
}  // namespace narrowfloat
