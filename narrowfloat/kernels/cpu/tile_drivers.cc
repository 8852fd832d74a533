// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/tile_drivers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace narrowfloat::cpu {
namespace {

/// Most rows of one call, and a number of columns that every micro-kernel takes: the codes of the
/// longest vector.
constexpr std::size_t kMostRows = 64, kPaddedCols = 64;
static_assert(kPaddedCols % kColumnUnit == 0 && kMicroCols % kPaddedCols == 0);

/// Addresses of up to kMostRows rows from `row` on, from a column on.
struct RowPointers {
  std::size_t count;
  const std::byte* items[kMostRows];

  RowPointers(const MatrixRows<const std::byte>& in, std::size_t row, std::size_t row_end,
              std::size_t offset)
      : count(std::min(kMostRows, row_end - row)) {
    for (std::size_t r = 0; r < count; ++r) items[r] = in.Row(row + r) + offset;
  }
};

/// Copies of the first `bytes` of rows, followed by zeros up to kPaddedCols items.
struct PaddedRows {
  const std::byte* items[kMostRows];
  std::byte memory[kMostRows * kPaddedCols * sizeof(float)];

  PaddedRows(const std::byte* const* rows, std::size_t count, std::size_t bytes,
             std::size_t item_bytes) {
    for (std::size_t r = 0; r < count; ++r) {
      std::byte* to = memory + r * kPaddedCols * item_bytes;
      std::memcpy(to, rows[r], bytes);
      std::memset(to + bytes, 0, kPaddedCols * item_bytes - bytes);
      items[r] = to;
    }
  }
};

/// Calls add(rows, count, cols, sums) for the rows of a tile, in their order; columns that fill no
/// kColumnUnit apart and padded.
template <class Add>
void AddTile(const MatrixRows<const std::byte>& in, const Tile& tile, std::size_t item_bytes,
             float* sums, const Add& add) {
  const std::size_t cols = tile.col_end - tile.col_begin;
  const std::size_t whole = cols / kColumnUnit * kColumnUnit, rest = cols - whole;
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += kMostRows) {
    const RowPointers rows(in, row, tile.row_end, tile.col_begin * item_bytes);
    if (whole > 0) add(rows.items, rows.count, whole, sums);
    if (rest == 0) continue;
    const RowPointers ends(in, row, tile.row_end, (tile.col_begin + whole) * item_bytes);
    const PaddedRows padded(ends.items, ends.count, rest * item_bytes, item_bytes);
    float padded_sums[kColumnUnit] = {};
    std::copy_n(sums + whole, rest, padded_sums);
    add(padded.items, ends.count, kColumnUnit, padded_sums);
    std::copy_n(padded_sums, rest, sums + whole);
  }
}

/// Stores the amaxes of at most kMicroCols columns.
void ColumnAmaxes(const MatrixRows<const std::byte>& in, const Tile& tile,
                  const AmaxKernels& kernels, float* amaxes) {
  const std::size_t cols = tile.col_end - tile.col_begin;
  const std::size_t whole = cols / kPaddedCols * kPaddedCols, rest = cols - whole;
  alignas(64) std::byte patterns[kMicroCols * sizeof(float)] = {};
  std::byte* rest_patterns = patterns + whole * kernels.item_bytes;
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += kMostRows) {
    const RowPointers rows(in, row, tile.row_end, tile.col_begin * kernels.item_bytes);
    if (whole > 0)
      kernels.of_columns_of_all({rows.items, rows.count}, whole, AmaxRows::kOfAllCalls, patterns);
    if (rest == 0) continue;
    const RowPointers ends(in, row, tile.row_end, (tile.col_begin + whole) * kernels.item_bytes);
    const PaddedRows padded(ends.items, ends.count, rest * kernels.item_bytes, kernels.item_bytes);
    kernels.of_columns_of_all({padded.items, ends.count}, kPaddedCols, AmaxRows::kOfAllCalls,
                              rest_patterns);
  }
  for (std::size_t c = 0; c < cols; ++c) {
    std::uint32_t pattern = 0;
    std::memcpy(&pattern, patterns + c * kernels.item_bytes, kernels.item_bytes);
    amaxes[c] = kernels.value(pattern);
  }
}

/// Moves a matrix to a later row and byte.
MatrixRows<std::byte> Moved(MatrixRows<std::byte> out, std::size_t row, std::size_t offset) {
  if (out.row_offsets != nullptr) {
    out.row_offsets += row;
  } else {
    out.data += static_cast<std::ptrdiff_t>(row) * out.row_stride;
  }
  out.data += offset;
  return out;
}

class HadamardDriver {
 public:
  HadamardDriver(const MatrixRows<const std::byte>& in, const Tile& tile,
                 const ItemKernels& kernels, HadamardFn reference, std::uint32_t sign_mask,
                 const MatrixRows<std::byte>& out)
      : in_(in),
        tile_(tile),
        kernels_(kernels),
        reference_(reference),
        sign_mask_(sign_mask),
        out_(out) {}

  void Run() const {
    const std::size_t all = tile_.col_end - tile_.col_begin;
    for (std::size_t row = tile_.row_begin; row < tile_.row_end; row += kHadamardSize) {
      for (std::size_t col = 0, cols; col < all; col += cols) {
        cols = std::min(kTransformCols, all - col);
        if (cols > kColumnUnit) cols = cols / kColumnUnit * kColumnUnit;
        RunGroup(row, col, cols);
      }
    }
  }

 private:
  /// Transforms `cols` columns of a group: columns of whole units, or fewer than a unit. Columns
  /// count from the tile's first one.
  void RunGroup(std::size_t row, std::size_t col, std::size_t cols) const {
    const TransformRows rows = RowsAt(row, col);
    std::uint16_t inexact[kTransformCols];
    const std::size_t count = cols % kColumnUnit == 0
                                  ? kernels_.transform(rows, cols, sign_mask_, inexact)
                                  : TransformPadded(rows, cols, inexact);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t to = col + inexact[i], from = tile_.col_begin + to;
      reference_(in_, {row, row + kHadamardSize, from, from + 1}, sign_mask_,
                 Moved(out_, row - tile_.row_begin, to * kernels_.item_bytes));
    }
  }

  /// Does the micro-kernel's work for fewer columns than it takes. The sums of zeros are exact.
  std::size_t TransformPadded(const TransformRows& to, std::size_t cols,
                              std::uint16_t* inexact) const {
    const std::size_t bytes = cols * kernels_.item_bytes;
    const PaddedRows padded(to.in.data(), kHadamardSize, bytes, kernels_.item_bytes);
    std::byte transformed[kHadamardSize][kColumnUnit * sizeof(float)];
    TransformRows rows;
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      rows.in[k] = rows.next[k] = padded.items[k];
      rows.out[k] = transformed[k];
    }
    const std::size_t count = kernels_.transform(rows, kColumnUnit, sign_mask_, inexact);
    for (std::size_t k = 0; k < kHadamardSize; ++k) std::memcpy(to.out[k], transformed[k], bytes);
    return count;
  }

  /// Returns the addresses of a group's rows. The next group is prefetched or, at the tile's last
  /// one, the first group of the tile beside it.
  TransformRows RowsAt(std::size_t row, std::size_t col) const {
    const bool is_last = row + kHadamardSize >= tile_.row_end;
    const std::size_t next_row = is_last ? tile_.row_begin : row + kHadamardSize;
    const std::size_t next_col = (is_last ? tile_.col_end : tile_.col_begin) + col;
    TransformRows rows;
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      rows.in[k] = in_.Row(row + k) + (tile_.col_begin + col) * kernels_.item_bytes;
      rows.next[k] = in_.Row(next_row + k) + next_col * kernels_.item_bytes;
      rows.out[k] = out_.Row(row + k - tile_.row_begin) + col * kernels_.item_bytes;
    }
    return rows;
  }

  const MatrixRows<const std::byte>& in_;
  const Tile& tile_;
  const ItemKernels& kernels_;
  HadamardFn reference_;
  std::uint32_t sign_mask_;
  const MatrixRows<std::byte>& out_;
};

}  // namespace

float DriveAmax(const MatrixRows<const std::byte>& in, const Tile& tile,
                const ItemKernels& kernels) noexcept {
  const std::size_t rows = tile.row_end - tile.row_begin, cols = tile.col_end - tile.col_begin;
  const std::size_t first = tile.col_begin * kernels.item_bytes;
  if (rows > 0 && in.IsContiguous(cols * kernels.item_bytes))
    return kernels.amax(in.Row(tile.row_begin) + first, rows * cols);
  float largest = 0.0f;
  for (std::size_t row = tile.row_begin; row < tile.row_end; ++row)
    largest = std::max(largest, kernels.amax(in.Row(row) + first, cols));
  return largest;
}

void DriveColumnSum(const MatrixRows<const std::byte>& in, const Tile& tile,
                    const ItemKernels& kernels, float* sums) noexcept {
  AddTile(in, tile, kernels.item_bytes, sums,
          [&](auto... rows) { kernels.add_rows(rows..., nullptr); });
}

float DriveAmaxSum(const MatrixRows<const std::byte>& in, const Tile& tile,
                   const ItemKernels& kernels, float* sums) noexcept {
  float largest = 0.0f;
  bool has_nan = false;
  AddTile(in, tile, kernels.item_bytes, sums,
          [&](const std::byte* const* rows, std::size_t count, std::size_t cols, float* of_rows) {
            float amax = 0.0f;
            kernels.add_rows(rows, count, cols, of_rows, &amax);
            has_nan |= std::isnan(amax);
            largest = std::max(largest, amax);
          });
  return has_nan ? DriveAmax(in, tile, kernels) : largest;
}

void DriveColumnAmax(const MatrixRows<const std::byte>& in, const Tile& tile,
                     const AmaxKernels& kernels, float* amaxes) noexcept {
  for (std::size_t col = tile.col_begin; col < tile.col_end; col += kMicroCols) {
    const std::size_t end = std::min(col + kMicroCols, tile.col_end);
    ColumnAmaxes(in, {tile.row_begin, tile.row_end, col, end}, kernels,
                 amaxes + (col - tile.col_begin));
  }
}

void DriveHadamard(const MatrixRows<const std::byte>& in, const Tile& tile,
                   const ItemKernels& kernels, HadamardFn reference, std::uint32_t sign_mask,
                   const MatrixRows<std::byte>& out) noexcept {
  HadamardDriver(in, tile, kernels, reference, sign_mask, out).Run();
}

}  // namespace narrowfloat::cpu
