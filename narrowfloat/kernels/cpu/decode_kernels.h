// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of dequantizing: leaf functions that depend on no scheme, tensor or geometry. Each
// instruction set exports one table of them; decode_driver.cc calls them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/numerics/formats.h"

namespace narrowfloat::cpu {

/// Most items of a row of one call on blocks. Runs of 1024 took 1.08 times as long.
inline constexpr std::size_t kDecodeRun = 4096;
/// Most columns of one call on columns, and most scales of one call.
inline constexpr std::size_t kDecodeCols = 4096;
/// Places after the scales and factors of a call. Kernels read them, but no result depends on them.
inline constexpr std::size_t kDecodePadding = 64;
/// Places of an array of the scales of columns.
inline constexpr std::size_t kDecodePlaces = kDecodeCols + kDecodePadding;
/// Positions and lines of a patch of transposed codes.
inline constexpr std::size_t kDecodeSide = 128;

/// Runs of `rows` rows: the addresses of the first one, and the bytes from one row's address to the
/// next one's. If `next` is not null, as many bytes are prefetched there as bytes of codes are
/// read. With `nontemporal`, items have non-temporal stores: all rows of `items` must be aligned to
/// kNontemporalAlignment.
struct DecodeRuns {
  const std::byte* codes;
  std::byte* items = nullptr;
  bool nontemporal = false;
  const std::byte* next = nullptr;
  std::size_t rows = 1, code_stride = 0, next_stride = 0;
  std::ptrdiff_t item_stride = 0;
};

/// Decodes runs of `count` codes under one scale. Supports any code and any scale; every NaN
/// becomes the one quiet NaN.
using DecodeUniformFn = void (*)(const DecodeRuns& runs, std::size_t count, float scale) noexcept;

/// Scales of adjacent blocks of 2^shift items: scales[i >> shift] is the scale of item i.
struct DecodeBlocks {
  const float* scales;
  int shift;
};
/// Returns the fewest items of a block that DecodeBlocksFn supports, for codes of `bits` bits.
constexpr std::size_t ShortestDecodedBlock(int bits) {
  return bits == 8 ? 32 : 16;
}
/// Decodes runs of `count` items in blocks; 4-bit codes are packed, two per byte and the first in
/// the low half. Requires: 0 < count <= kDecodeRun, an even count for 4-bit codes; blocks of at
/// least ShortestDecodedBlock items; kDecodePadding places after the scales.
using DecodeBlocksFn = void (*)(const DecodeRuns& runs, std::size_t count,
                                const DecodeBlocks& blocks) noexcept;

/// The scales of columns, and the factors that FactorsFn computes from them. With has_factors, the
/// scales are not read.
struct DecodeColumns {
  const float* scales;
  std::uint16_t* factors;
  bool has_factors = false;
};
/// Computes the factors of DecodeColumnsFn for `count` scales. 8-bit codes: for a power of two, the
/// number that is subtracted from an item's pattern. 4-bit codes: the products with 4 and,
/// kDecodePlaces further on, with 6. Returns false if a scale of 8-bit codes is not a power of two,
/// or if a scale (of 4-bit codes: other than +0) times a nonzero code is not a normal number of the
/// items' type. Requires: count <= kDecodeCols.
using FactorsFn = bool (*)(const float* scales, std::size_t count, std::uint16_t* factors) noexcept;
/// Computes the factors of FactorsFn from `count` adjacent E8M0 scales of 8-bit codes, as they are
/// stored. Returns as FactorsFn does. Writes whole vectors.
using StoredFactorsFn = bool (*)(const std::byte* stored, std::size_t count,
                                 std::uint16_t* factors) noexcept;
/// Decodes runs of one item of each of `count` columns. Requires: count <= kDecodeCols; if
/// has_factors, FactorsFn returned true for these scales; kDecodePadding places after the scales;
/// 2 * kDecodePlaces factors.
using DecodeColumnsFn = void (*)(const DecodeRuns& runs, std::size_t count,
                                 const DecodeColumns& columns) noexcept;

/// The micro-kernels of one format of codes and one type of items.
struct FormatDecoders {
  DecodeBlocksFn blocks;
  DecodeColumnsFn columns;                    // reads one code per byte, 4-bit codes too
  FactorsFn factors = nullptr;                // null for fp32 items
  DecodeUniformFn uniform = nullptr;          // null for 4-bit codes
  StoredFactorsFn factors_of_e8m0 = nullptr;  // null if `factors` never succeeds, or 4-bit codes
};

/// The factors of E4M3 scales: a scale is the value of its code times `amax`, times `decode`; both
/// products are rounded.
struct ScaleFactors {
  float amax = 0.0f, decode = 0.0f;
};
/// Decodes `count` adjacent stored scales.
using DecodeScalesFn = void (*)(const std::byte* stored, std::size_t count,
                                const ScaleFactors& factors, float* scales) noexcept;

/// Copies `count` bytes of each of `lines` lines, `stride` apart, to `staged`, `staged_stride`
/// apart: lines are often a power of two apart and share a cache set.
using StageCodesFn = void (*)(const std::byte* codes, std::size_t stride, std::size_t lines,
                              std::size_t count, std::byte* staged,
                              std::size_t staged_stride) noexcept;
/// Writes the transpose of `rows` bytes of kDecodeSide lines, `stride` apart, to `patch`, whose
/// rows are kDecodeSide apart. Reads and writes up to a multiple of 16 rows. Requires: rows <=
/// kDecodeSide.
using TransposeCodesFn = void (*)(const std::byte* staged, std::size_t stride, std::size_t rows,
                                  std::byte* patch) noexcept;
/// Replaces the first `rows` rows of a patch by twice as many: the low halves of the bytes of row r
/// become row 2r, the high halves row 2r + 1. Requires: rows <= kDecodeSide / 2.
using SplitRowsFn = void (*)(std::byte* patch, std::size_t rows) noexcept;

/// The micro-kernels of one instruction set.
struct DecodeKernels {
  std::array<DecodeScalesFn, kScaleTypeCount> scales;  // by ScaleType
  StageCodesFn stage_codes;
  TransposeCodesFn transpose_codes;
  SplitRowsFn split_rows;
  std::array<ByType<FormatDecoders>, ElementFormats::kSize> formats;
};

}  // namespace narrowfloat::cpu
