// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of codes of 4 bits, two E2M1 codes per byte: leaf functions that depend on no
// scheme, tensor or geometry, like the functions of micro_kernels.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/numerics/stochastic.h"

namespace narrowfloat::cpu {

/// Items of a row that share an entry of `scale`. Blocks have a multiple of this number of items.
inline constexpr std::size_t kPackUnit = kRandomRun;
/// Most blocks or columns of one call.
inline constexpr std::size_t kPackPlaces = kTransposedCols;
static_assert(kMicroRun / kPackUnit <= kPackPlaces);

/// The numbers from which the two-level scales of each block or column are computed. These may be
/// of different lines: `encode` maps the line's amax to the range of codes and scales;
/// encode_over_max is encode / 6.
struct TwoLevelFactors {
  alignas(64) float amax[kPackPlaces];
  alignas(64) float encode[kPackPlaces];
  alignas(64) float encode_over_max[kPackPlaces];
  alignas(64) float reciprocal_encode[kPackPlaces];

  /// Sets the numbers of places from `begin` to `end`. State is Nvfp4Rule's.
  template <class State>
  void Fill(std::size_t begin, std::size_t end, const State& of) {
    for (std::size_t i = begin; i < end; ++i) {
      amax[i] = of.amax;
      encode[i] = of.encode;
      encode_over_max[i] = of.encode_over_max;
      reciprocal_encode[i] = of.reciprocal_encode;
    }
  }
};

/// The scales of blocks or columns, in arrays of kPackPlaces: the stored bytes, and the factors of
/// the items. `scale` begins at a cache line. For columns, the order of `scale` depends on the
/// instruction set and on the type of the items.
struct PackScales {
  std::byte* scale_inv;
  float* scale;
};

/// Computes the scales of `count` blocks or columns from the patterns of their amaxes. Returns true
/// if no product of finite items with these scales rounds to more than the largest code. Requires:
/// amaxes up to a whole vector are patterns; of columns, count is a multiple of
/// MicroKernels::vector_bytes; factors are positive and finite.
using PackScalesFn = bool (*)(const std::byte* amaxes, std::size_t count,
                              const TwoLevelFactors& factors, const PackScales& scales) noexcept;

/// The functions of one rule of scales.
struct PackScaleKernels {
  PackScalesFn of_blocks, of_columns;
};

/// The functions of a row or of columns, by the rounding of products to codes: to nearest, or
/// stochastic with one random byte per item.
template <class Fn>
struct PackRoundings {
  // Finite items, for whose scales PackScalesFn or CandidatesFn returned true.
  Fn finite;
  Fn all;                            // any items: saturates, and encodes NaN and infinities
  Fn stochastic_finite, stochastic;  // for the same items as `finite` and `all`
};

/// Encodes a run of `units` units of kPackUnit adjacent items, each with its scale, and packs two
/// codes per byte, the first one in the low half. Reads `random` up to a whole step of 128 items.
using PackRowFn = void (*)(const MicroRun& run, std::size_t units, const float* scale,
                           const std::uint8_t* random) noexcept;

/// Rows of a strip: an even number of them, at most kTransposedCols columns, a multiple of
/// MicroKernels::vector_bytes. As many bytes as are read of a row are prefetched from `next`.
struct PackedStrip {
  const std::byte* const* rows;
  const std::byte* const* next;
  std::size_t count, cols;
};
/// Encodes the columns of a strip and packs two rows to one row of bytes, the first one in the low
/// halves. The rows of `codes` and of `random` are kTransposedCols apart.
using PackColumnsFn = void (*)(const PackedStrip& strip, const float* scale,
                               const std::uint8_t* random, std::byte* codes) noexcept;

/// Stores RandomBytes of the `count` runs first, first + step, ... Of a row: in order, and more
/// runs up to a whole vector, which are at most 7. Of columns: byte r of run c at r *
/// kTransposedCols + c; columns are rounded up to whole vectors.
using RandomFn = void (*)(const RandomState& state, std::uint64_t first, std::uint64_t step,
                          std::size_t count, std::uint8_t* out) noexcept;

/// Two scales of each block or column: the first one maps its amax to 4, the second one to 6.
/// 4over6 uses the one with the smaller error.
struct ScaleCandidates {
  struct {
    alignas(64) std::uint32_t code[kPackPlaces];
    alignas(64) float value[kPackPlaces];  // of the code
    alignas(64) float scale[kPackPlaces];
  } of[2];
};
/// Errors of both candidates.
struct CandidateErrors {
  alignas(64) float of[2][kPackPlaces];
};
/// The error that 4over6 measures: squares or magnitudes, in the range of codes and scales
/// (`fast_error`) or of the items. full_range is the largest product of a code and a scale.
struct ErrorRule {
  float full_range;
  bool squares, fast_error;
};

/// Computes the candidates of `count` blocks or columns. Returns as PackScalesFn does.
using CandidatesFn = bool (*)(const std::byte* amaxes, std::size_t count,
                              const TwoLevelFactors& factors, ScaleCandidates& candidates) noexcept;
/// Computes the errors of `blocks` adjacent blocks of kPackUnit items of one row, added in the
/// order of the items. Infinite and NaN items make both errors of their block infinite or NaN.
using RowErrorsFn = void (*)(const std::byte* items, std::size_t blocks,
                             const TwoLevelFactors& factors, const ErrorRule& rule,
                             const ScaleCandidates& candidates, CandidateErrors& errors) noexcept;
/// Computes the errors of the columns of a strip of at most kPackUnit rows.
using ColumnErrorsFn = void (*)(const PackedStrip& strip, const TwoLevelFactors& factors,
                                const ErrorRule& rule, const ScaleCandidates& candidates,
                                CandidateErrors& errors) noexcept;
/// The functions of exact errors or of estimates. The unit of an estimate depends on the candidate.
/// Estimates of several lines may be added.
struct ErrorKernels {
  RowErrorsFn of_row;
  ColumnErrorsFn of_columns;  // estimates need an even number of rows
};
/// Converts both estimates to one unit, and stores the indices of the blocks or columns whose exact
/// errors may compare differently. Returns their number. If amaxes are too small or too large for
/// estimates, returns `count` and stores no index. `lines` is the number of lines in each estimate.
/// Requires: all items are finite, and CandidatesFn returned true.
using CompareFn = std::size_t (*)(const TwoLevelFactors& factors, const ScaleCandidates& candidates,
                                  std::size_t lines, std::size_t count, CandidateErrors& estimates,
                                  std::uint8_t* undecided) noexcept;
/// The functions of estimates; null where these are not faster than exact errors.
struct EstimateKernels {
  ErrorKernels errors;
  CompareFn compare;
};
/// Stores the scale of each block's or column's better candidate: the second one if the errors are
/// equal or one is NaN. Writes whole vectors.
using ChooseFn = void (*)(const ScaleCandidates& candidates, const CandidateErrors& errors,
                          std::size_t count, const PackScales& scales) noexcept;
struct FourOverSixKernels {
  CandidatesFn candidates;
  ErrorKernels errors;
  std::array<EstimateKernels, 2> estimates;  // of magnitudes, of squares
  ChooseFn choose_of_blocks, choose_of_columns;
};

/// The micro-kernels of one type of items.
struct PackKernels {
  // By ScaleType: null for fp32; E8M0 scales of MxRule, without factors; E4M3 scales with the
  // factors of the line.
  std::array<PackScaleKernels, kScaleTypeCount> scales;
  PackRoundings<PackRowFn> row;
  PackRoundings<PackColumnsFn> columns;
  RandomFn random_of_row, random_of_columns;
  FourOverSixKernels four_over_six;
};

}  // namespace narrowfloat::cpu
