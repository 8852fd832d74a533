// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/drivers.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

namespace narrowfloat::cpu {
namespace {

/// A tensor of two rows of patches, and a tile: the upper row of patches from a column on.
struct Bands {
  explicit Bands(std::size_t cols, std::size_t first_col) : items(kRows * cols * kItemBytes) {
    args.in = {items.data(), static_cast<std::ptrdiff_t>(cols * kItemBytes)};
    args.shape = {kRows, cols};
    args.tile = {0, kTransposedRun, first_col, cols};
  }
  Rect Patch(std::size_t col) const {
    return {0, kTransposedRun, col, std::min(kTransposedCols, args.tile.col_end - col)};
  }

  static constexpr std::size_t kRows = 2 * kTransposedRun, kItemBytes = 2;
  std::vector<std::byte> items;
  QuantizeArgs args{};
};

TEST(DriversTest, RowsOfAGroupPrefetchEachPieceOfTheNextGroupOnce) {
  constexpr std::size_t kGroup = kPatchesAhead * kTransposedCols;
  for (const std::size_t first_col : {std::size_t{0}, kTransposedCols}) {
    const Bands bands(first_col + 2 * kGroup, first_col);
    for (const bool is_last : {false, true}) {  // then the next group is in the rows below
      std::map<std::pair<std::size_t, std::size_t>, int> seen;
      const std::size_t begin = first_col + (is_last ? kGroup : 0);
      for (std::size_t col = begin; col < begin + kGroup; col += kTransposedCols) {
        for (std::size_t r = 0; r < kTransposedRun; ++r) {
          const Place place = NextPiece(bands.args, bands.Patch(col), r);
          ++seen[{place.row, place.col}];
        }
      }
      const std::size_t row = is_last ? kTransposedRun : 0, col = is_last ? 0 : first_col + kGroup;
      EXPECT_EQ(seen.size(), kTransposedRun * kPatchesAhead);
      for (std::size_t r = 0; r < kTransposedRun; ++r) {
        for (std::size_t piece = 0; piece < kPatchesAhead; ++piece)
          EXPECT_EQ((seen[{row + r, col + piece * kTransposedCols}]), 1) << r << " " << piece;
      }
    }
  }
}

TEST(DriversTest, RunsStepByPiecesToTheirPlaces) {
  const Bands bands(4 * kTransposedCols, 0);
  for (std::size_t col = 0; col < 2 * kTransposedCols; col += kTransposedCols) {
    const Rect patch = bands.Patch(col);
    MicroRuns runs;
    runs.rows = patch.rows / 2;
    runs.pieces = kPatchesAhead;
    const Place next = NextPiece(bands.args, patch, patch.rows / 2);
    ASSERT_TRUE(SetItems(bands.args, {0, col}, next, Bands::kItemBytes, runs));
    for (std::size_t r = 0; r < runs.rows; ++r) {
      const Place place = NextPiece(bands.args, patch, patch.rows / 2 + r);
      const std::byte* at = PrefetchAt(bands.args, place, Bands::kItemBytes);
      const auto down = static_cast<std::ptrdiff_t>(r / runs.pieces) * runs.item_stride;
      const auto aside = static_cast<std::ptrdiff_t>(r % runs.pieces) * runs.piece_stride;
      EXPECT_EQ(runs.first.next + down + aside, at) << "row " << r << " of column " << col;
      EXPECT_EQ(RunOf(bands.args, {0, col}, next, Bands::kItemBytes, runs, r).next, at) << r;
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cpu
