// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of quantizing: leaf functions that know no scheme, no tensor and no geometry. Each
// instruction set exports one table of them; the drivers, which are plain C++ and compiled once,
// call them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/numerics/formats.h"

namespace narrowfloat::cpu {

/// Items of one MX block.
inline constexpr std::size_t kMicroBlock = 32;

/// Largest number of blocks of one call on blocks, and of columns of one call on columns. Arrays of
/// scales have so many places, because micro-kernels read and write whole vectors.
inline constexpr std::size_t kMicroBlocks = 64, kMicroCols = 1024;

/// Holds the addresses of the scales of adjacent blocks or columns. Each array has room for whole
/// vectors; all but `code` begin at a cache line. Only the micro-kernels read `scale`, `floor` and
/// `multiplier`: how these are ordered depends on the instruction set, the type of the items, and
/// on whether the scales are of blocks or of columns.
struct MicroScales {
  std::uint8_t* code;    // E8M0, in order: what is stored beside the codes
  float* scale;          // what items are multiplied by
  std::uint32_t* floor;  // constants of rounding under power-of-two scales
  float* multiplier;     // the same
};

/// A run of one row: `items` need no alignment. As many bytes as are read from `items` are
/// prefetched at `next`. With `nontemporal`, codes bypass the caches; `codes` must then be aligned
/// to MicroKernels::vector_bytes.
struct MicroRun {
  const std::byte* items;
  const std::byte* next;
  std::byte* codes;
  bool nontemporal;
};

/// Stores the pattern of the largest magnitude of each of `blocks` blocks of kMicroBlock adjacent
/// items, as unsigned integers of the items' width; then zeros up to a whole vector. NaN is
/// ignored. Returns true if all items are finite. Requires: blocks <= kMicroBlocks.
/// bfloat16, -1 and 2^-133 beside NaN: 0x3F80; 31 zeros and infinity: 0x7F80, false.
using BlockAmaxFn = bool (*)(const std::byte* items, std::size_t blocks,
                             std::byte* amaxes) noexcept;

/// Which rows the amaxes of columns are of after a call: only those of the call, or also those of
/// earlier ones.
enum class AmaxRows : bool { kOfThisCall, kOfAllCalls };

/// Stores the patterns of the largest magnitudes of `cols` columns of `count` rows. Returns true if
/// all items are finite. If not, the first function leaves patterns that do not count; the second
/// one ignores NaN. Requires: cols is a multiple of MicroKernels::vector_bytes and at most
/// kMicroCols; `amaxes` begins at a cache line.
using ColumnAmaxFn = bool (*)(const std::byte* const* rows, std::size_t count, std::size_t cols,
                              AmaxRows which, std::byte* amaxes) noexcept;

/// Computes the E8M0 scales of `count` blocks or columns from their amaxes: MxRule's. Returns true
/// if encoding under power-of-two scales may be used for all of them: no scale is so small or large
/// that its constants leave the range of fp32. Computes whole vectors: amaxes up to there must be
/// patterns.
using MxScalesFn = bool (*)(const std::byte* amaxes, std::size_t count,
                            const MicroScales& scales) noexcept;

/// Encodes `blocks` blocks of kMicroBlock items, or `cols` items that are each of another column.
/// The variants for all inputs saturate, and encode NaN and infinities. The others require that
/// items are finite, and that the function that computed the scales returned true.
/// Requires: cols is a multiple of MicroKernels::vector_bytes.
using EncodeFn = void (*)(const MicroRun& run, std::size_t count,
                          const MicroScales& scales) noexcept;

/// Encodes `cols` items twice, as the two functions for finite items do: by blocks to run.codes, by
/// columns to `column_codes`, which needs no alignment. Each item is loaded once.
/// Requires: cols is a multiple of kMicroBlock and of MicroKernels::vector_bytes.
using EncodeBothFn = void (*)(const MicroRun& run, std::size_t cols, const MicroScales& of_blocks,
                              const MicroScales& of_columns, std::byte* column_codes) noexcept;

/// Copies a run with stores that bypass the caches, except for the parts of lines at its ends.
using CopyFn = void (*)(const std::byte* from, std::size_t count, std::byte* to) noexcept;

/// The micro-kernels of one format of codes and one type of items.
struct MxKernels {
  std::size_t item_bytes;     // of an item; amaxes are as wide
  std::size_t rows_per_pass;  // rows of kMicroCols items that the first-level cache holds together
  BlockAmaxFn block_amax;
  ColumnAmaxFn column_amax, column_amax_of_all;
  MxScalesFn block_scales, column_scales;
  EncodeFn encode_blocks, encode_all_blocks, encode_columns, encode_all_columns;
  EncodeBothFn encode_both;
};

/// The formats that the micro-kernels encode to.
enum class MicroFormat : std::uint8_t { kE4M3, kE5M2 };
inline constexpr std::size_t kMicroFormats = 2;

/// The micro-kernels of one instruction set.
struct MicroKernels {
  std::size_t vector_bytes;  // codes of one vector
  CopyFn copy_nontemporal;
  std::array<ByType<MxKernels>, kMicroFormats> mx;  // by format
};

/// Returns the micro-kernels of an instruction set, by its index in Highway's dispatch order; null
/// for the baseline.
const MicroKernels* MicroKernelsOf(std::size_t target);

}  // namespace narrowfloat::cpu
