// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/tiles.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

namespace narrowfloat {
namespace {

/// Returns "" if the tiles of a grid cover each element once, else a tile or element that is wrong.
std::string Uncovered(const TileGrid& grid) {
  std::vector<int> covered(grid.shape.rows * grid.shape.cols);
  for (std::size_t i = 0; i < grid.Count(); ++i) {
    const Tile tile = grid[i];
    if (tile.row_end > grid.shape.rows || tile.col_end > grid.shape.cols)
      return fmt::format("tile {} ends at {} x {}", i, tile.row_end, tile.col_end);
    for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
      for (std::size_t c = tile.col_begin; c < tile.col_end; ++c)
        ++covered[r * grid.shape.cols + c];
    }
  }
  for (std::size_t i = 0; i < covered.size(); ++i) {
    if (covered[i] != 1) return fmt::format("element {} is in {} tiles", i, covered[i]);
  }
  return "";
}

TEST(TilesTest, CoverEachElementOnce) {
  for (const MatrixShape shape : {MatrixShape{1, 1}, {7, 30}, {64, 48}, {65, 33}}) {
    for (const std::size_t step : {1u, 7u, 16u, 100u}) {
      for (const std::size_t head : {0u, 1u, 15u, 200u}) {
        const TileGrid grid{shape, step, step + 1, head, head / 2};
        EXPECT_EQ(Uncovered(grid), "")
            << shape.rows << " x " << shape.cols << " by " << step << " after " << head;
      }
    }
  }
}

TEST(TilesTest, AreCutAfterTheHeadAndThenEveryStep) {
  const TileGrid grid{{64, 48}, 16, 20, 5, 3};
  const std::size_t rows[] = {0, 5, 21, 37, 53, 64}, cols[] = {0, 3, 23, 43, 48};
  ASSERT_EQ(grid.RowTiles(), std::size(rows) - 1);
  ASSERT_EQ(grid.ColTiles(), std::size(cols) - 1);
  for (std::size_t i = 0; i < grid.Count(); ++i) {
    const std::size_t row = i / grid.ColTiles(), col = i % grid.ColTiles();
    EXPECT_EQ(grid[i].row_begin, rows[row]);
    EXPECT_EQ(grid[i].row_end, rows[row + 1]);
    EXPECT_EQ(grid[i].col_begin, cols[col]);
    EXPECT_EQ(grid[i].col_end, cols[col + 1]);
  }
}

TEST(TilesTest, CornersAreMultiplesOfTheUnits) {
  for (const std::size_t elements : {std::size_t{1000}, kTileElements}) {
    for (const std::size_t rows : {1u, 32u, 128u}) {
      const TileGrid grid = MakeTileGrid({1000, 700}, rows, 128, elements);
      EXPECT_EQ(Uncovered(grid), "");
      for (std::size_t i = 0; i < grid.Count(); ++i) {
        EXPECT_EQ(grid[i].row_begin % rows, 0u);
        EXPECT_EQ(grid[i].col_begin % 128, 0u);
      }
    }
  }
}

TEST(TilesTest, StreamedTilesAreAnEighthOfAThreadsShareWithinLimits) {
  const MatrixShape large{8192, 4096};
  EXPECT_EQ(StreamedTileElements({.threads = 1}, {256, 512}), kTileElements);
  EXPECT_EQ(StreamedTileElements({.threads = 1}, {1024, 1024}), 2 * kTileElements);
  EXPECT_EQ(StreamedTileElements({.threads = 1}, large), 8 * kTileElements);
  EXPECT_EQ(StreamedTileElements({.threads = 16}, large), 4 * kTileElements);
  EXPECT_EQ(StreamedTileElements({.threads = 1000}, large), kTileElements);
}

}  // namespace
}  // namespace narrowfloat
