// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of quantizing: leaf functions that depend on no scheme, tensor or geometry. Each
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

/// Most items of one call on blocks or on a row, and most columns of one call on columns.
inline constexpr std::size_t kMicroRun = 2048, kMicroCols = kMicroRun;

/// Lengths of the blocks whose amaxes micro-kernels compute, and of the blocks that they encode.
inline constexpr std::array<std::size_t, 4> kAmaxLengths{kMxBlock / 2, kMxBlock, 2 * kMxBlock,
                                                         4 * kMxBlock};
inline constexpr std::array<std::size_t, 3> kBlockLengths{kMxBlock, 2 * kMxBlock, 4 * kMxBlock};
/// Returns the index of a length, or the number of lengths if the list has no such length.
template <std::size_t kCount>
constexpr std::size_t IndexOf(const std::array<std::size_t, kCount>& lengths, std::size_t items) {
  std::size_t i = 0;
  while (i < kCount && lengths[i] != items) ++i;
  return i;
}
/// Most blocks of one call that encodes blocks. Arrays of their scales have this number of places,
/// because micro-kernels read and write whole vectors.
inline constexpr std::size_t kMicroBlocks = kMicroRun / kMxBlock;

/// Alignment, in bytes, that a run needs for non-temporal stores.
inline constexpr std::size_t kNontemporalAlignment = 16;
inline bool IsNontemporalAligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kNontemporalAlignment == 0;
}

/// Copies `bytes` bytes of items to `to`, and writes zeros after them, up to `padded` bytes. Short
/// last blocks and vectors are quantized in this form. Returns `to`.
inline const std::byte* PadItems(const std::byte* from, std::size_t bytes, std::size_t padded,
                                 std::byte* to) {
  std::memcpy(to, from, bytes);
  std::memset(to + bytes, 0, padded - bytes);
  return to;
}

/// Addresses of the scales of adjacent blocks or columns. Each array has room for whole vectors and
/// begins at a cache line; E8M0 codes may begin anywhere. Only the micro-kernels read `scale`,
/// `floor` and `multiplier`. Their order depends on the instruction set, on the type of the items,
/// and on whether the scales are of blocks or of columns.
struct MicroScales {
  std::byte* scale_inv;  // the output: E8M0 or fp32, in the order of the blocks or columns
  float* scale;          // factors of the items
  std::uint32_t* floor;  // PowerConstants::Floor of power-of-two scales (scales-inl.h)
  float* multiplier;     // PowerConstants::Multiplier of power-of-two scales
};

/// A run of one row: `items` need no alignment. As many bytes as are read from `items` are
/// prefetched at `next`. With `nontemporal`, `codes` must be aligned to kNontemporalAlignment; to a
/// cache line for EncodeUniformFn and, if there is a copy, for EncodeFn. If `copy` is not null, the
/// codes are stored there too; EncodeBothFn stores the codes of the columns there.
struct MicroRun {
  const std::byte* items;
  const std::byte* next;
  std::byte* codes;
  bool nontemporal;
  std::byte* copy = nullptr;
};

/// Runs of `rows` rows: the first run, and the bytes from one row's address to the next one's. A
/// row at `next` has `pieces` pieces, a power of two, `piece_stride` bytes apart. Successive runs
/// prefetch successive pieces; the first run prefetches the first piece of a row.
struct MicroRuns {
  MicroRun first;
  std::size_t rows = 1;
  std::ptrdiff_t item_stride = 0;  // of `items`, and of the rows at `next`
  std::size_t code_stride = 0, copy_stride = 0;
  std::size_t pieces = 1;
  std::ptrdiff_t piece_stride = 0;
};

/// Stores the pattern of the largest magnitude of each of `blocks` blocks of adjacent items, as
/// unsigned integers of the items' width, NaN ignored. Then stores zeros up to a whole vector, or
/// up to the most blocks of a call. Returns true if all items are finite. Requires: blocks > 0, of
/// at most kMicroRun items together. Examples, bfloat16: -1, 2^-133 and NaN give 0x3F80 and false;
/// 31 zeros and infinity give 0x7F80 and false.
using BlockAmaxFn = bool (*)(const std::byte* items, std::size_t blocks,
                             std::byte* amaxes) noexcept;

/// Stores the amaxes of the MX blocks of a row as BlockAmaxFn does, and updates the amaxes of its
/// blocks * kMxBlock columns. If it returns false, the patterns in both arrays are invalid.
/// Requires: `of_columns` begins at a cache line.
using RowAmaxFn = bool (*)(const std::byte* items, std::size_t blocks, std::byte* amaxes,
                           std::byte* of_columns) noexcept;

/// Rows of a call that computes the amaxes of columns. If `next` is not null, the call may prefetch
/// the next call's rows: up to `count` rows from `next` on, `stride` bytes apart.
struct ColumnRows {
  const std::byte* const* items;
  std::size_t count;
  const std::byte* next = nullptr;
  std::ptrdiff_t stride = 0;
};

/// Computes the patterns of the largest magnitudes of `cols` columns of `rows`. `of_columns` stores
/// them and returns true if all items are finite, else its patterns are invalid.
/// `of_columns_of_all` updates the patterns in `amaxes`, ignores NaN, and returns true if no amax
/// is infinite. Requires: rows.count > 0; cols is a multiple of MicroKernels::vector_bytes and at
/// most kMicroCols; `amaxes` begins at a cache line.
using MicroColumnAmaxFn = bool (*)(const ColumnRows& rows, std::size_t cols,
                                   std::byte* amaxes) noexcept;

/// Computes the scales of `count` blocks or columns from their amaxes. Returns true if
/// EncodeKernels::powers_of_two supports them all: powers of two whose constants are in the range
/// of fp32. Requires: amaxes up to a whole vector are patterns; of columns, `amaxes` begins at a
/// cache line, and count is a multiple of half of MicroKernels::vector_bytes.
using ScalesFn = bool (*)(const std::byte* amaxes, std::size_t count, const ScaleRule& rule,
                          const MicroScales& scales) noexcept;

/// The functions of one rule of scales.
struct ScaleKernels {
  ScalesFn of_blocks, of_columns;
};

/// Encodes runs of `count` blocks, or of one item of each of `count` columns. All rows have the
/// same scales. Requires: items as the member of EncodeKernels states; of columns, count is a
/// multiple of MicroKernels::vector_bytes.
using EncodeFn = void (*)(const MicroRuns& runs, std::size_t count,
                          const MicroScales& scales) noexcept;
struct EncodeKernels {
  EncodeFn powers_of_two;  // finite items, for whose scales ScalesFn returned true
  EncodeFn finite;         // finite items; no product with a scale rounds to more than the maximum
  EncodeFn all;            // any items: saturates, and encodes NaN and infinities
};

/// One scale for all items, and its tables. Instruction sets with tables look codes up instead of
/// computing them; FillSteps (lookup-inl.h) describes the tables.
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
  std::uint32_t largest = 0;  // largest magnitude pattern so far; NaN counts as 0
  bool all_finite = true;     // the body for finite items encoded all calls so far
};
/// Encodes runs of `count` items of any value under one scale, saturating, and updates the state.
/// Uses the body for finite items until a call has an item that is not finite, or whose product
/// rounds to more than the largest value. Requires: the scale is positive and finite.
using EncodeUniformFn = void (*)(const MicroRuns& runs, std::size_t count,
                                 UniformState& state) noexcept;
struct UniformKernels {
  TabulateFn tabulate;
  EncodeUniformFn encode;
};

/// Encodes `cols` items twice, as the functions powers_of_two do: by MX blocks to run.codes, by
/// columns to run.copy, which needs no alignment. Loads each item once.
/// Requires: cols is a multiple of kMxBlock and of MicroKernels::vector_bytes.
using EncodeBothFn = void (*)(const MicroRun& run, std::size_t cols, const MicroScales& of_blocks,
                              const MicroScales& of_columns) noexcept;

/// Copies a run with non-temporal stores, except for the partial lines at its ends.
using CopyFn = void (*)(const std::byte* from, std::size_t count, std::byte* to) noexcept;

/// Writes the transpose of rows x cols codes, whose rows are kTransposedCols apart, to columns
/// `stride` apart. Stores are non-temporal if `nontemporal`. Reads up to a multiple of vector_bytes
/// (MicroKernels) rows and of kSquareSide columns. Requires: rows <= kTransposedRun, cols <=
/// kTransposedCols.
using TransposeFn = void (*)(const std::byte* codes, std::size_t rows, std::size_t cols,
                             std::byte* out, std::size_t stride, bool nontemporal) noexcept;

/// The functions that compute amaxes of one type of items.
struct AmaxKernels {
  std::array<BlockAmaxFn, kAmaxLengths.size()> of_blocks;
  RowAmaxFn of_row;
  MicroColumnAmaxFn of_columns, of_columns_of_all;
};

/// The micro-kernels of one format of codes and one type of items.
struct FormatKernels {
  std::array<EncodeKernels, kBlockLengths.size()> encode_blocks;
  // By ScaleType: fp32 scales as ScaleFromAmax computes them; E8M0 codes as MxRule does, without
  // options; null for E4M3.
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
  std::size_t vector_bytes;  // of a vector, which holds as many 8-bit codes
  CopyFn copy_nontemporal;
  TransposeFn transpose;
  ByType<AmaxKernels> amax;
  std::array<ByType<FormatKernels>, MicroFormats::kSize> formats;
};

}  // namespace narrowfloat::cpu
