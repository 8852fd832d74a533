// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of quantizing: leaf functions that know no scheme, no tensor and no geometry. Each
// instruction set exports one table of them; the drivers, which are plain C++ and compiled once,
// call them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/numerics/scale.h"
#include "narrowfloat/schemes/mxfp8.h"

namespace narrowfloat::cpu {

/// Most items of one call on blocks, and most columns of one call on columns.
inline constexpr std::size_t kMicroRun = 2048, kMicroCols = 2048;

/// The lengths of blocks whose amaxes the micro-kernels compute, and of those that they encode.
inline constexpr std::array<std::size_t, 4> kAmaxLengths{kMxBlock / 2, kMxBlock, 2 * kMxBlock,
                                                         4 * kMxBlock};
inline constexpr std::array<std::size_t, 3> kBlockLengths{kMxBlock, 2 * kMxBlock, 4 * kMxBlock};
/// Returns the index of a length, or the number of lengths.
template <std::size_t kCount>
constexpr std::size_t IndexOf(const std::array<std::size_t, kCount>& lengths, std::size_t items) {
  std::size_t i = 0;
  while (i < kCount && lengths[i] != items) ++i;
  return i;
}
/// Most blocks of one call that encodes them. Arrays of their scales have so many places, because
/// micro-kernels read and write whole vectors.
inline constexpr std::size_t kMicroBlocks = kMicroRun / kMxBlock;

/// Bytes to whose multiples runs must be aligned for stores that bypass the caches.
inline constexpr std::size_t kNontemporalAlignment = 16;
inline bool IsNontemporalAligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kNontemporalAlignment == 0;
}

/// Copies `bytes` bytes of items, and zeros up to `padded` bytes: the form in which a short last
/// block or vector is quantized. Returns the copy's address.
inline const std::byte* PadItems(const std::byte* from, std::size_t bytes, std::size_t padded,
                                 std::byte* to) {
  std::memcpy(to, from, bytes);
  std::memset(to + bytes, 0, padded - bytes);
  return to;
}

/// Holds the addresses of the scales of adjacent blocks or columns. Each array has room for whole
/// vectors and begins at a cache line; E8M0 codes may begin anywhere. Only the micro-kernels read
/// `scale`, `floor` and `multiplier`: how these are ordered depends on the instruction set, the
/// type of the items, and on whether the scales are of blocks or of columns.
struct MicroScales {
  std::byte* scale_inv;  // E8M0 or fp32, in order: what is stored beside the codes
  float* scale;          // what items are multiplied by
  std::uint32_t* floor;  // constants of rounding under power-of-two scales
  float* multiplier;     // the same
};

/// A run of one row: `items` need no alignment. As many bytes as are read from `items` are
/// prefetched at `next`. With `nontemporal`, codes bypass the caches; `codes` must then be aligned
/// to kNontemporalAlignment, and to a cache line if there is a copy or one scale for all items. If
/// `copy` is not null, the codes are stored there too; EncodeBothFn stores those of columns there.
struct MicroRun {
  const std::byte* items;
  const std::byte* next;
  std::byte* codes;
  bool nontemporal;
  std::byte* copy = nullptr;
};

/// Runs of `rows` rows: the first one, and the bytes from one row's address to the next one's. A
/// row at `next` has `pieces` pieces, a power of two, `piece_stride` bytes apart: successive runs
/// prefetch these one by one, the first run a row's first piece.
struct MicroRuns {
  MicroRun first;
  std::size_t rows = 1;
  std::ptrdiff_t item_stride = 0;  // of `items`, and of the rows at `next`
  std::size_t code_stride = 0, copy_stride = 0;
  std::size_t pieces = 1;
  std::ptrdiff_t piece_stride = 0;
};

/// Stores the pattern of the largest magnitude of each of `blocks` blocks of adjacent items, as
/// unsigned integers of the items' width; then zeros up to a whole vector, or to the most blocks.
/// NaN is ignored. Returns true if all items are finite. Requires: the blocks have at most
/// kMicroRun items. bfloat16, -1 and 2^-133 beside NaN: 0x3F80; 31 zeros and infinity: 0x7F80,
/// false.
using BlockAmaxFn = bool (*)(const std::byte* items, std::size_t blocks,
                             std::byte* amaxes) noexcept;

/// Stores the amaxes of the MX blocks of a row as BlockAmaxFn does, and updates the amaxes of its
/// blocks * kMxBlock columns. If it returns false, the patterns in neither array count. Requires:
/// `of_columns` begins at a cache line.
using RowAmaxFn = bool (*)(const std::byte* items, std::size_t blocks, std::byte* amaxes,
                           std::byte* of_columns) noexcept;

/// The rows whose amaxes columns hold after a call: those of the call, or also those of earlier
/// calls.
enum class AmaxRows : bool { kOfThisCall, kOfAllCalls };

/// Rows of a call that computes the amaxes of columns. If `next` is not null, the call may prefetch
/// the next call's rows: up to `count` rows from `next` on, `stride` bytes apart.
struct ColumnRows {
  const std::byte* const* items;
  std::size_t count;
  const std::byte* next = nullptr;
  std::ptrdiff_t stride = 0;
};

/// Stores the patterns of the largest magnitudes of `cols` columns of `rows`. Returns true if
/// all items are finite. If not, the first function leaves patterns that do not count; the second
/// one ignores NaN. Requires: cols is a multiple of MicroKernels::vector_bytes and at most
/// kMicroCols; `amaxes` begins at a cache line.
using MicroColumnAmaxFn = bool (*)(const ColumnRows& rows, std::size_t cols, AmaxRows which,
                                   std::byte* amaxes) noexcept;

/// Computes the scales of `count` blocks or columns from their amaxes. Returns true if encoding
/// under power-of-two scales may be used for all of them: they are such powers, and none is so
/// small or large that its constants leave the range of fp32. Computes whole vectors: amaxes up to
/// there must be patterns.
using ScalesFn = bool (*)(const std::byte* amaxes, std::size_t count, const ScaleRule& rule,
                          const MicroScales& scales) noexcept;

/// The functions of one rule of scales.
struct ScaleKernels {
  ScalesFn of_blocks, of_columns;
};

/// Encodes runs of `count` blocks, or of `count` items that are each of another column, under the
/// same scales. Requires: items are as the member says; of columns, count is a multiple
/// of MicroKernels::vector_bytes.
using EncodeFn = void (*)(const MicroRuns& runs, std::size_t count,
                          const MicroScales& scales) noexcept;
struct EncodeKernels {
  EncodeFn powers_of_two;  // finite, and the function that computed the scales returned true
  EncodeFn finite;         // finite; no product with its scale is larger than the format's values
  EncodeFn all;            // any; saturates, and encodes NaN and infinities
};

/// One scale for all items, and its tables. An instruction set that has them looks codes up instead
/// of computing them; FillSteps describes their contents.
struct UniformTables {
  float scale;
  bool are_filled = false;
  std::uint16_t floor;
  alignas(64) std::uint8_t excess[128], code[64], last[64];
};
/// Fills the tables for `tables.scale`, if the instruction set has tables and the scale allows
/// them; else clears `are_filled`. Requires: the scale is positive and finite.
using TabulateFn = void (*)(UniformTables& tables) noexcept;

/// State of the calls for items under one scale.
struct UniformState {
  UniformTables tables;
  std::uint32_t largest = 0;  // of all patterns of magnitudes; NaN counts as 0
  bool all_finite = true;     // all calls so far were encoded by the body for finite items
};
/// Encodes runs of `count` items of any value under one scale, saturating, and updates the state.
/// Tries a body for finite items, whose products with the scale round to no more than the largest
/// value of the format, until a call has others. Requires: the scale is positive and finite.
using EncodeUniformFn = void (*)(const MicroRuns& runs, std::size_t count,
                                 UniformState& state) noexcept;
struct UniformKernels {
  TabulateFn tabulate;
  EncodeUniformFn encode;
};

/// Encodes `cols` items twice, as the two functions powers_of_two do: by MX blocks to run.codes,
/// by columns to run.copy, which needs no alignment. Each item is loaded once.
/// Requires: cols is a multiple of kMxBlock and of MicroKernels::vector_bytes.
using EncodeBothFn = void (*)(const MicroRun& run, std::size_t cols, const MicroScales& of_blocks,
                              const MicroScales& of_columns) noexcept;

/// Copies a run with stores that bypass the caches, except for the parts of lines at its ends.
using CopyFn = void (*)(const std::byte* from, std::size_t count, std::byte* to) noexcept;

/// Writes the transpose of rows x cols codes, kTransposedCols apart, to columns `stride` apart;
/// with stores that bypass the caches if `nontemporal`. Reads rows and columns up to multiples of
/// MicroKernels::vector_bytes. Requires: rows <= kTransposedRun, cols <= kTransposedCols.
using TransposeFn = void (*)(const std::byte* codes, std::size_t rows, std::size_t cols,
                             std::byte* out, std::size_t stride, bool nontemporal) noexcept;

/// The amaxes of one type of items.
struct AmaxKernels {
  std::size_t item_bytes;  // of an item; amaxes are as wide
  std::array<BlockAmaxFn, kAmaxLengths.size()> of_blocks;
  RowAmaxFn of_row;
  MicroColumnAmaxFn of_columns, of_columns_of_all;
  float (*value)(std::uint32_t pattern);  // of an amax
};

/// The micro-kernels of one format of codes and one type of items.
struct FormatKernels {
  std::array<EncodeKernels, kBlockLengths.size()> encode_blocks;
  // By ScaleType: fp32 from ScaleFromAmax, and MxRule's E8M0 codes, which have no options;
  // none for E4M3.
  std::array<ScaleKernels, kScaleTypeCount> scales;
  EncodeKernels encode_columns;
  EncodeBothFn encode_both;
  UniformKernels uniform;
};

/// The formats that the micro-kernels encode to: the first ones of ElementFormats.
using MicroFormats = TypeList<E4M3, E5M2>;
static_assert(IndexIn<E4M3>(ElementFormats{}) == 0 && IndexIn<E5M2>(ElementFormats{}) == 1);

/// The micro-kernels of one instruction set.
struct MicroKernels {
  std::size_t vector_bytes;  // codes of one vector
  CopyFn copy_nontemporal;
  TransposeFn transpose;
  ByType<AmaxKernels> amax;
  std::array<ByType<FormatKernels>, MicroFormats::kSize> formats;
};

}  // namespace narrowfloat::cpu
