// SPDX-License-Identifier: Apache-2.0
// The drivers of quantizing and dequantizing: plain C++, compiled once. A driver loops over a tile,
// stages its edges, chooses the prefetches and the kind of stores, and calls micro-kernels. It
// reads the geometry of the scheme from kSchemes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "hwy/base.h"
#include "narrowfloat/kernels/cpu/decode_kernels.h"
#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/kernels/cpu/pack_kernels.h"
#include "narrowfloat/kernels/cpu/tables.h"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::cpu {

/// Quantizes a tile of a scheme with blocks and codes of 8 bits. Requires: blocks with E8M0 scales
/// have kMxBlock items.
void DriveBlocks(const QuantizeArgs& args, const TargetParts& parts) noexcept;
/// Quantizes a tile under one scale; columnwise codes are stored transposed. Requires: the scale is
/// positive and finite.
void DriveWhole(const QuantizeArgs& args, const TargetParts& parts) noexcept;
/// Quantizes a tile of a scheme with codes of 4 bits, in one direction; columnwise codes are stored
/// transposed. Requires: the factors of E4M3 scales are positive and finite.
void DrivePacked(const QuantizeArgs& args, const TargetParts& parts) noexcept;
/// Dequantizes a tile. Requires: HasDecoder (scheme_drivers.h) returns true for the scheme and the
/// direction. Columnwise codes of 4 bits are stored transposed, and their tiles begin at the first
/// row of a block.
void DriveDecoding(const DequantizeArgs& args, const TargetParts& parts) noexcept;

/// Returns the entry of a table for a type of items or scales, or for a direction.
template <class Entries, class Enum>
const auto& Of(const Entries& entries, Enum of) {
  return entries[static_cast<std::size_t>(of)];
}

/// Computes the amaxes of columns, NaN ignored. Returns true if all items are finite. Requires:
/// `amaxes` has room for fp32.
inline bool ComputeColumnAmaxes(const AmaxKernels& kernels, const ColumnRows& rows,
                                std::size_t cols, std::byte* amaxes) {
  if (kernels.of_columns(rows, cols, amaxes)) return true;
  std::memset(amaxes, 0, cols * sizeof(float));
  kernels.of_columns_of_all(rows, cols, amaxes);
  return false;
}

/// Memory for the amax patterns of kPlaces blocks or columns, for any type of items.
template <std::size_t kPlaces>
struct alignas(64) AmaxMemory {
  std::byte pattern[kPlaces * sizeof(float)];
};

/// Copies scales in pieces of constant size: a call of std::memcpy for so few bytes takes longer.
inline void CopyScales(const std::byte* from, std::size_t bytes, std::byte* to) {
  for (; bytes >= 16; bytes -= 16, from += 16, to += 16) std::memcpy(to, from, 16);
  for (; bytes >= 8; bytes -= 8, from += 8, to += 8) std::memcpy(to, from, 8);
  for (; bytes >= 4; bytes -= 4, from += 4, to += 4) std::memcpy(to, from, 4);
  for (; bytes > 0; --bytes) *to++ = *from++;
}
/// Copies one scale, of 1 or 4 bytes.
inline void CopyScale(const std::byte* from, std::size_t bytes, std::byte* to) {
  if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else {
    *to = *from;
  }
}
/// Stores scales from (line, block) on. Requires: `lines` or `blocks` is 1. Not inlined, because
/// each copy of the loops has more than 1000 bytes.
HWY_NOINLINE inline void StoreScales(const DirectionBuffers<std::byte>& out,
                                     std::size_t scale_bytes, std::size_t line, std::size_t lines,
                                     std::size_t block, std::size_t blocks,
                                     const std::byte* scales) {
  const ScaleStrides strides = out.strides;  // a copy, because stores of bytes may alias it
  std::byte* const first = out.scale_inv;
  const auto at = [=](std::size_t l, std::size_t b) {
    return first + (strides.LineOffset(l) + strides.BlockOffset(b)) * scale_bytes;
  };
  if (lines == 1 ? strides.BlocksAreAdjacent() : strides.LinesAreAdjacent())
    return CopyScales(scales, lines * blocks * scale_bytes, at(line, block));
  for (std::size_t l = line; l < line + lines; ++l) {
    for (std::size_t b = block; b < block + blocks; ++b, scales += scale_bytes)
      CopyScale(scales, scale_bytes, at(l, b));
  }
}

/// Divides a tile into rectangles of at most rows x cols. Calls visit(rect) for each, from left to
/// right, then downwards.
template <class Visit>
void ForEachRect(const Tile& tile, std::size_t rows, std::size_t cols, const Visit& visit) {
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += rows) {
    for (std::size_t col = tile.col_begin; col < tile.col_end; col += cols) {
      visit(Rect{row, std::min(rows, tile.row_end - row), col, std::min(cols, tile.col_end - col)});
    }
  }
}

/// A position in the matrix, from which items are encoded or prefetched.
struct Place {
  std::size_t row, col;
};
/// Returns the place at `col` of a row or, if the row ends before `col`, the beginning of the row
/// that is `rows` rows below.
inline Place NextPlace(const QuantizeArgs& args, std::size_t row, std::size_t col,
                       std::size_t rows) {
  return col < args.shape.cols ? Place{row, col} : Place{row + rows, 0};
}
/// Number of adjacent patches of transposed codes whose items are prefetched as one group. Groups
/// are counted from the tile's first column. Shorter pieces of rows take longer to prefetch
/// (docs/performance.md).
inline constexpr std::size_t kPatchesAhead = 2;
/// Returns the place that the r-th row of a patch prefetches: a piece of one row, as wide as a
/// patch, of the next group. That group is to the right or, after the last columns, it is the first
/// one of the rows below. Example: with 4 rows, the first patch prefetches both pieces of rows 0
/// and 1, the second patch both pieces of rows 2 and 3. A last group of one patch does not prefetch
/// all rows.
inline Place NextPiece(const QuantizeArgs& args, const Rect& patch, std::size_t r) {
  const std::size_t index = (patch.col - args.tile.col_begin) / kTransposedCols % kPatchesAhead;
  const std::size_t behind = patch.col + (kPatchesAhead - index) * kTransposedCols;
  const Place first = NextPlace(args, patch.row, behind, patch.rows);
  const std::size_t piece = index * RoundUp(patch.rows, kPatchesAhead) + r;
  return {first.row + piece / kPatchesAhead, first.col + piece % kPatchesAhead * kTransposedCols};
}
/// Returns the address of the item at a place; uses the last row in place of rows below it.
inline const std::byte* ItemsAt(const QuantizeArgs& args, const Place& place,
                                std::size_t item_bytes) {
  return args.in.Row(std::min(place.row, args.shape.rows - 1)) + place.col * item_bytes;
}

/// Returns the first line boundary at or after a place, from which its items are prefetched. The
/// run to the left has read the cache line in which an unaligned run begins.
inline const std::byte* PrefetchAt(const QuantizeArgs& args, const Place& place,
                                   std::size_t item_bytes) {
  const std::byte* items = ItemsAt(args, place, item_bytes);
  return items + BytesToLine(items);
}

/// Returns true if a vector has 512 bits. Which prefetches and passes are fastest depends on this
/// (docs/performance.md).
inline bool HasLongVectors(const MicroKernels& micro) {
  return micro.vector_bytes >= kLineBytes;
}

/// Prefetches the first lines of each page that begins in the `bytes` bytes from `from` on, because
/// some processors prefetch adjacent lines only within a page. If `from` is a constant distance
/// ahead of a run and `bytes` is the run's length, calls for successive runs reach each page once.
/// The bytes may be beyond the tensor.
inline void PrefetchPageStarts(const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kPage = 4096, kLines = 8;
  std::size_t i = -reinterpret_cast<std::uintptr_t>(from) % kPage;
  for (; i < bytes; i += kPage) {
    for (std::size_t k = 0; k < kLines; ++k) __builtin_prefetch(from + i + k * kLineBytes, 0, 2);
  }
}

/// A length that is a power of two: shifts replace the divisions that drivers need for each row.
struct Length {
  explicit Length(std::size_t count) : items(count), shift(std::countr_zero(count)) {}
  std::size_t IndexOf(std::size_t i) const { return i >> shift; }
  std::size_t CountIn(std::size_t count) const { return (count + items - 1) >> shift; }
  std::size_t RoundDown(std::size_t count) const { return count >> shift << shift; }
  std::size_t RoundUp(std::size_t count) const { return CountIn(count) << shift; }
  bool Divides(std::size_t count) const { return (count & (items - 1)) == 0; }

  std::size_t items;
  int shift;
};

/// Returns true if the codes of all rows begin at multiples of `alignment` bytes, a power of two.
inline bool AreAligned(const MicroRuns& runs, std::size_t alignment) {
  const Length unit(alignment);
  return unit.Divides(reinterpret_cast<std::uintptr_t>(runs.first.codes)) &&
         (runs.rows == 1 || unit.Divides(runs.code_stride));
}

/// Calls encode(run) for a run of `bytes` codes. If the codes are non-temporal and not aligned to
/// `alignment`, encodes them to `staged`, in the first-level cache, and copies whole lines from
/// there.
template <class Encode>
void WriteRun(const MicroKernels& micro, const MicroRun& run, std::size_t alignment,
              std::size_t bytes, std::byte* staged, const Encode& encode) {
  if (!run.nontemporal || reinterpret_cast<std::uintptr_t>(run.codes) % alignment == 0)
    return encode(run);
  encode({run.items, run.next, staged, false, run.copy});
  micro.copy_nontemporal(staged, bytes, run.codes);
}

/// Changes runs that write codes to a patch: they then write codes to the rowwise output and copies
/// to the patch. Selects non-temporal stores only if all rows are aligned: partial lines at the
/// ends of short runs are not worth staging.
inline void KeepRows(const QuantizeArgs& args, const Place& items, MicroRuns& runs) {
  runs.first.copy = runs.first.codes;
  runs.copy_stride = runs.code_stride;
  runs.code_stride = args.rowwise.code_stride;
  runs.first.codes = args.rowwise.codes + items.row * runs.code_stride + items.col;
  runs.first.nontemporal = args.nontemporal && AreAligned(runs, kLineBytes);
}

/// Sets the addresses from which runs of rows are read and prefetched. Returns false if the rows
/// are not evenly spaced: the caller must then encode each row by itself (RunOf).
inline bool SetItems(const QuantizeArgs& args, const Place& items, const Place& next,
                     std::size_t item_bytes, MicroRuns& runs) {
  const std::size_t last = args.shape.rows - runs.rows;  // rows below the tensor are not prefetched
  runs.first.items = ItemsAt(args, items, item_bytes);
  runs.first.next = PrefetchAt(args, {std::min(next.row, last), next.col}, item_bytes);
  runs.item_stride = args.in.row_stride;
  runs.piece_stride = static_cast<std::ptrdiff_t>(kTransposedCols * item_bytes);
  return args.in.row_offsets == nullptr;
}
/// Returns the run of the r-th row of `runs`. The rows may be unevenly spaced.
inline MicroRun RunOf(const QuantizeArgs& args, const Place& items, const Place& next,
                      std::size_t item_bytes, const MicroRuns& runs, std::size_t r) {
  MicroRun run = runs.first;
  run.items = ItemsAt(args, {items.row + r, items.col}, item_bytes);
  const std::size_t row = next.row + r / runs.pieces;
  run.next = PrefetchAt(args, {row, next.col + r % runs.pieces * kTransposedCols}, item_bytes);
  run.codes += r * runs.code_stride;
  if (run.copy != nullptr) run.copy += r * runs.copy_stride;
  return run;
}

}  // namespace narrowfloat::cpu
