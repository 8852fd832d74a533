// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "narrowfloat/io/write_convention.h"

/// Block FP8 (E4M3 codes, a scale for each tile of 128x128) out of other quantized weights.
namespace narrowfloat::io {

/// A tile of a weight, counted in tiles.
struct TilePlace {
  std::size_t matrix, row, col;
};

/// Returns whether a weight is MXFP4: E2M1 codes under E8M0 scales of 32.
bool IsMxfp4(const ForeignWeight& form);

/// Returns whether a weight is E4M3 in tiles of 128x128.
bool IsBlockFp8(const ForeignWeight& form);

/// Returns whether the exponents of an MXFP4 weight's blocks, of zeros too, span at most 14 in
/// every tile, and no scale is NaN or below code 6: then FindUnfitTile finds nothing. Reads scales
/// alone.
bool FitByExponents(const ForeignWeight& form, std::span<const std::byte> scales);

/// Returns the first tile of an MXFP4 weight whose values are not E4M3 numbers times one power of
/// two, or nothing. All tiles whose blocks' exponents span at most 14 fit: an E2M1 magnitude is 1
/// to 12 halves, and E4M3 has these from 2^-9 to 448. Blocks of zeros do not count. A NaN scale
/// fits nothing.
std::optional<TilePlace> FindUnfitTile(const CanonicalWeight& weight);

/// Returns codes and E8M0 scales that have the values of an MXFP4 weight. `codes` backs the result.
/// Requires: FindUnfitTile finds nothing.
CanonicalWeight Mxfp4ToBlockFp8(const CanonicalWeight& weight, std::vector<std::byte>& codes,
                                int threads);

/// Counts of values that rounding changed.
struct Loss {
  std::uint64_t values = 0, changed = 0;
  double largest = 0;  // of |new - old| / |old|

  void Add(const Loss& other);
};

/// Returns block FP8 under power-of-two scales. Keeps codes and scales if all scales are powers of
/// two already. Otherwise decodes every value to fp32 and quantizes it again under the smallest
/// power of two at or above its tile's largest value / 448; `loss` counts the values that this
/// changes. `codes` backs the result.
/// Errors: InvalidArgument for a scale that is not positive and finite.
CanonicalWeight ToPowerOfTwoScales(const CanonicalWeight& weight, std::vector<std::byte>& codes,
                                   int threads, Loss& loss);

}  // namespace narrowfloat::io
