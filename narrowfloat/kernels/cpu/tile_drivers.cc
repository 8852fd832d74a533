// SPDX-License-Identifier: Apache-2.0
// The operations of CpuTable on items that are not encoded.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "narrowfloat/kernels/cpu/cpu_table.h"
#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/exact_transform.h"
#include "narrowfloat/kernels/scalar/items.h"

namespace narrowfloat::cpu {
namespace {

/// Most rows of one call, and a number of columns that every micro-kernel supports: the codes of
/// the longest vector.
constexpr std::size_t kMostRows = 64, kPaddedCols = 64;
static_assert(kPaddedCols % kColumnUnit == 0 && kMicroCols % kPaddedCols == 0);

/// Calls visit(rows, col, cols) for each kMostRows rows of a tile, in their order: once for the
/// columns that fill units of `unit` columns, once for the others, padded with zeros to a unit.
/// `col` counts from the tile's first column. Requires: unit <= kPaddedCols.
template <class Visit>
void ForEachRows(const TileItems& of, std::size_t unit, const Visit& visit) {
  const Tile& tile = of.tile;
  const std::size_t item_bytes = ItemSize(of.dtype);
  const std::size_t cols = tile.col_end - tile.col_begin, whole = cols / unit * unit;
  const std::byte* items[kMostRows];
  std::byte padded[kMostRows][kPaddedCols * sizeof(float)];
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += kMostRows) {
    const ColumnRows rows{items, std::min(kMostRows, tile.row_end - row)};
    const auto item = [&](std::size_t r, std::size_t col) {
      return of.in.Row(row + r) + (tile.col_begin + col) * item_bytes;
    };
    for (std::size_t r = 0; r < rows.count; ++r) items[r] = item(r, 0);
    if (whole > 0) visit(rows, std::size_t{0}, whole);
    if (whole == cols) continue;
    const std::size_t bytes = (cols - whole) * item_bytes;
    for (std::size_t r = 0; r < rows.count; ++r)
      items[r] = PadItems(item(r, whole), bytes, unit * item_bytes, padded[r]);
    visit(rows, whole, unit);
  }
}

/// Calls add(rows, count, cols, sums) for the rows of a tile, in their order. Columns that fill no
/// unit have a padded copy of their sums.
template <class Add>
void AddTile(const TileItems& items, float* sums, const Add& add) {
  const std::size_t cols = items.tile.col_end - items.tile.col_begin, rest = cols % kColumnUnit;
  float padded_sums[kColumnUnit] = {};
  std::copy_n(sums + cols - rest, rest, padded_sums);
  ForEachRows(items, kColumnUnit, [&](const ColumnRows& rows, std::size_t col, std::size_t some) {
    add(rows.items, rows.count, some, col + some <= cols ? sums : padded_sums);
  });
  std::copy_n(padded_sums, rest, sums + cols - rest);
}

/// Stores the amaxes of a tile's columns, NaN ignored. Requires: at most kMicroCols columns.
void ColumnAmaxes(const TileItems& items, const AmaxKernels& kernels, float* amaxes) {
  const std::size_t cols = items.tile.col_end - items.tile.col_begin;
  const std::size_t item_bytes = ItemSize(items.dtype);
  alignas(64) std::byte patterns[kMicroCols * sizeof(float)] = {};
  ForEachRows(items, kPaddedCols, [&](const ColumnRows& rows, std::size_t col, std::size_t some) {
    kernels.of_columns_of_all(rows, some, patterns + col * item_bytes);
  });
  const auto load = ForType(items.dtype, []<class T>() { return &LoadItem<T>; });
  for (std::size_t c = 0; c < cols; ++c) amaxes[c] = load(patterns, c);
}

struct HadamardDriver {
  const TileItems& items;
  const ItemKernels& kernels;
  std::uint32_t sign_mask;
  const MatrixRows<std::byte>& out;
  const std::size_t item_bytes = ItemSize(items.dtype);

  /// Transforms the tile and returns the amax of the outputs.
  float Run() const {
    const Tile& tile = items.tile;
    const std::size_t all = tile.col_end - tile.col_begin;
    float largest = 0.0f;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kHadamardSize) {
      for (std::size_t col = 0, cols; col < all; col += cols) {
        cols = std::min(kTransformCols, all - col);
        if (cols > kColumnUnit) cols = cols / kColumnUnit * kColumnUnit;
        largest = std::max(largest, RunGroup(row, col, cols));
      }
    }
    return largest;
  }

  /// Transforms `cols` columns of a group and returns the amax of the outputs. `col` counts from
  /// the tile's first column. Requires: `cols` is a multiple of kColumnUnit, or less than it.
  float RunGroup(std::size_t row, std::size_t col, std::size_t cols) const {
    const TransformRows rows = RowsAt(row, col);
    if (cols % kColumnUnit == 0) return Transform(rows, cols);
    const std::size_t bytes = cols * item_bytes;
    constexpr std::size_t kMostBytes = kColumnUnit * sizeof(float);
    std::byte padded[kHadamardSize][kMostBytes], transformed[kHadamardSize][kMostBytes];
    TransformRows unit;
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      unit.in[k] = unit.next[k] = PadItems(rows.in[k], bytes, kColumnUnit * item_bytes, padded[k]);
      unit.out[k] = transformed[k];
    }
    const float amax = Transform(unit, kColumnUnit);
    for (std::size_t k = 0; k < kHadamardSize; ++k) std::memcpy(rows.out[k], transformed[k], bytes);
    return amax;
  }

  /// Transforms whole units of columns of a group. Returns the amax of the outputs.
  float Transform(const TransformRows& rows, std::size_t cols) const {
    alignas(64) std::byte amaxes[kTransformCols * sizeof(float)];
    if (TransformGroup(items.dtype, kernels, sign_mask, rows, cols, amaxes))
      return kernels.amax(amaxes, cols);
    float largest = 0.0f;
    for (const std::byte* of_row : rows.out)
      largest = std::max(largest, kernels.amax(of_row, cols));
    return largest;
  }

  /// Returns the addresses of a group's rows. The group below is prefetched or, for the tile's last
  /// group, the first group of the tile to the right.
  TransformRows RowsAt(std::size_t row, std::size_t col) const {
    const Tile& tile = items.tile;
    const bool is_last = row + kHadamardSize >= tile.row_end;
    const std::size_t next_row = is_last ? tile.row_begin : row + kHadamardSize;
    const std::size_t next_col = (is_last ? tile.col_end : tile.col_begin) + col;
    TransformRows rows;
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      rows.in[k] = items.in.Row(row + k) + (tile.col_begin + col) * item_bytes;
      rows.next[k] = items.in.Row(next_row + k) + next_col * item_bytes;
      rows.out[k] = out.Row(row + k - tile.row_begin) + col * item_bytes;
    }
    return rows;
  }
};

}  // namespace

float CpuTable::Amax(const TileItems& items) const noexcept {
  const ItemKernels& kernels = Of(*parts_.items, items.dtype);
  const Tile& tile = items.tile;
  const std::size_t rows = tile.row_end - tile.row_begin, cols = tile.col_end - tile.col_begin;
  const std::size_t item_bytes = ItemSize(items.dtype), first = tile.col_begin * item_bytes;
  if (rows > 0 && items.in.IsContiguous(cols * item_bytes))
    return kernels.amax(items.in.Row(tile.row_begin) + first, rows * cols);
  float largest = 0.0f;
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row)
    largest = std::max(largest, kernels.amax(items.in.Row(row) + first, cols));
  return largest;
}

void CpuTable::ColumnSum(const TileItems& items, float* sums, float* amax) const noexcept {
  const ItemKernels& kernels = Of(*parts_.items, items.dtype);
  float largest = 0.0f;
  bool has_nan = false;
  AddTile(items, sums,
          [&](const std::byte* const* rows, std::size_t count, std::size_t cols, float* of_rows) {
            float of_call = 0.0f;
            kernels.add_rows(rows, count, cols, of_rows, amax == nullptr ? nullptr : &of_call);
            has_nan |= std::isnan(of_call);
            largest = std::max(largest, of_call);
          });
  if (amax != nullptr) *amax = has_nan ? Amax(items) : largest;
}

void CpuTable::ColumnAmax(const TileItems& items, float* amaxes) const noexcept {
  TileItems part = items;
  for (std::size_t col = items.tile.col_begin; col < items.tile.col_end; col += kMicroCols) {
    part.tile.col_begin = col;
    part.tile.col_end = std::min(col + kMicroCols, items.tile.col_end);
    ColumnAmaxes(part, Of(parts_.micro->amax, items.dtype), amaxes + (col - items.tile.col_begin));
  }
}

float CpuTable::Hadamard(const TileItems& items, std::uint32_t sign_mask,
                         const MatrixRows<std::byte>& out) const noexcept {
  return HadamardDriver{items, Of(*parts_.items, items.dtype), sign_mask, out}.Run();
}

}  // namespace narrowfloat::cpu
