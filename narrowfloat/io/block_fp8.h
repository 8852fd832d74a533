// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "narrowfloat/io/write_convention.h"

/// Converts other quantized weights to block FP8 (E4M3 codes, a scale for each tile of 128x128).
namespace narrowfloat::io {

/// The position of a tile in a weight, counted in tiles.
struct TilePlace {
  std::size_t matrix, row, col;
};

/// Returns whether a weight is MXFP4: E2M1 codes under E8M0 scales of 32.
bool IsMxfp4(const ForeignWeight& form);

/// Returns whether a weight is E4M3 in tiles of 128x128.
bool IsBlockFp8(const ForeignWeight& form);

/// Returns whether an MXFP4 weight fits by its exponents: in every tile, the exponents of the
/// blocks' scales (also of zero blocks) span at most 14, and no scale is NaN or has a code below 6.
/// If true, FindUnfitTile returns nullopt. Reads only scales.
bool FitByExponents(const ForeignWeight& form, std::span<const std::byte> scales);

/// Returns the first tile of an MXFP4 weight with values that are not E4M3 numbers times one power
/// of two, or nullopt. A tile fits if its blocks' exponents span at most 14: an E2M1 magnitude is 1
/// to 12 halves, and E4M3 has these from 2^-9 to 448. Blocks of zeros are ignored. A NaN scale
/// never fits.
std::optional<TilePlace> FindUnfitTile(const CanonicalWeight& weight);

/// Returns E4M3 codes and E8M0 scales with the values of an MXFP4 weight. `codes` backs the result.
/// Requires: FindUnfitTile returns nullopt.
CanonicalWeight Mxfp4ToBlockFp8(const CanonicalWeight& weight, std::vector<std::byte>& codes,
                                int threads);

/// Returns whether all scales are positive and finite. If true, CheckTileScales accepts a weight
/// with these scales. Reads only scales, in any order.
bool HasPositiveScales(FileDType type, std::span<const std::byte> scales);

/// Checks that the scales of a block FP8 weight can become powers of two. Errors: InvalidArgument
/// for a scale that is not positive and finite; zero is valid if all codes of its tile are zeros.
void CheckTileScales(const CanonicalWeight& weight);

/// Counts of values that rounding changed.
struct Loss {
  std::uint64_t values = 0, changed = 0;
  double largest = 0;  // of |new - old| / |old|

  void Add(const Loss& other);
};

/// Returns block FP8 with power-of-two scales. Keeps codes and scales if all scales are powers of
/// two already; a scale of zero becomes the smallest one. Otherwise decodes every value to fp32 and
/// quantizes it again with the smallest power of two at or above its tile's amax / 448; `loss`
/// counts the values that this changes. `codes` backs the result. Errors: as CheckTileScales.
CanonicalWeight ToPowerOfTwoScales(const CanonicalWeight& weight, std::vector<std::byte>& codes,
                                   int threads, Loss& loss);

}  // namespace narrowfloat::io
