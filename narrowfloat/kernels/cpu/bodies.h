// SPDX-License-Identifier: Apache-2.0
// Says which body serves the quantize slots of a scheme and a direction. A body's file fills the
// slots that this table gives it and no others, so that bodies do not overlap.
#pragma once

#include <cstdint>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::cpu {

enum class Body : std::uint8_t {
  kReference,   // kernels/scalar: what no vector body takes
  kWhole,       // quantize_whole.cc: one scale, known beforehand
  kMx,          // mx_driver.cc: 1x32 and 32x1 under E8M0, codes in the input's orientation
  kRows,        // quantize_rows.cc: other blocks of one row
  kTiles,       // quantize_tiles.cc: square blocks, codes in the input's orientation
  kTransposed,  // quantize_transposed.cc: transposed codes of blocks and of tiles
  kPacked,      // quantize_packed.cc: codes of 4 bits, transposed columnwise
};

/// The longest vector's lanes of codes, and the side of the patches of transposed codes.
inline constexpr std::size_t kMostLanes = 64, kPatchSide = 128;

/// Returns the body of a slot. Each condition is what the body's code requires of a scheme.
template <Scheme S>
constexpr Body BodyOf(Direction direction) {
  constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;
  constexpr bool kTransposed = S::kLayout.columnwise_transposed;
  const bool keeps_order = direction == Direction::kRowwise || !kTransposed;
  // Never called: such schemes have a pass for each direction.
  if (direction == Direction::kBoth &&
      !JoinsDirections(S::kBlock, kBits<typename S::Element>, kTransposed))
    return Body::kReference;
  if constexpr (WholeTensorScheme<S>) {
    return ByteScheme<S> && kTransposed ? Body::kWhole : Body::kReference;
  } else if constexpr (kCodesPerByte<S> == 2 && kTransposed) {
    return !TwoLevelScheme<S> || kCols == kRandomRun ? Body::kPacked : Body::kReference;
    // NOLINTNEXTLINE(bugprone-branch-clone): the reference serves schemes for several reasons.
  } else if constexpr (!ByteScheme<S> || kCols % (kMostLanes / 2) != 0) {
    return Body::kReference;
  } else if constexpr (SquareBlockScheme<S>) {
    if (keeps_order) return Body::kTiles;
    return kRows == kPatchSide && kCols == kPatchSide ? Body::kTransposed : Body::kReference;
  } else if constexpr (kCols == kMxBlock && S::kLayout.scale_type == ScaleType::kE8M0 &&
                       !kTransposed) {
    return Body::kMx;
  } else if constexpr (kPatchSide % kCols != 0) {
    return Body::kReference;
  } else {
    if (direction == Direction::kRowwise) return Body::kRows;
    return kTransposed ? Body::kTransposed : Body::kReference;
  }
}

}  // namespace narrowfloat::cpu
