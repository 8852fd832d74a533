// SPDX-License-Identifier: Apache-2.0
// Says which body serves the quantize slots of a scheme and a direction. A body's file fills the
// slots that this table gives it and no others, so that bodies do not overlap.
#pragma once

#include <cstdint>
#include <type_traits>

#include "narrowfloat/kernels/cpu/pack_kernels.h"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/nvfp4.h"

namespace narrowfloat::cpu {

enum class Body : std::uint8_t {
  kReference,  // kernels/scalar: what no vector body takes
  kWhole,      // whole_driver.cc: one scale, known beforehand
  kBlocks,     // block_driver.cc: blocks of 32, 64 and 128, and squares of them; codes of 8 bits
  kPacked,     // packed_driver.cc: codes of 4 bits, transposed columnwise
};

/// Returns true if the scales of S are computed by `Rule`, and by no function that hides its own.
template <Scheme S, class Rule>
constexpr bool HasRule() {
  if constexpr (std::is_base_of_v<Rule, S>) {
    return &S::ScaleBlock == &Rule::ScaleBlock && &S::Prepare == &Rule::Prepare;
  } else {
    return false;
  }
}
template <Scheme S>
inline constexpr bool kHasMxScales = HasRule<S, MxRule<typename S::Element> >();
template <Scheme S>
inline constexpr bool kHasFloatScales = HasRule<S, Fp8BlockRule<typename S::Element> >();
template <Scheme S>
inline constexpr bool kHasTwoLevels = HasRule<S, Nvfp4Rule<S::kBlock> >();

/// Returns the body of a slot. Each condition is what the body's code requires of a scheme.
template <Scheme S>
constexpr Body BodyOf(Direction direction) {
  constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;
  constexpr bool kTransposed = S::kLayout.columnwise_transposed;
  // Never called: such schemes have a pass for each direction.
  if (direction == Direction::kBoth &&
      !JoinsDirections(S::kBlock, kBits<typename S::Element>, kTransposed))
    return Body::kReference;
  if constexpr (WholeTensorScheme<S>) {
    return ByteScheme<S> && kTransposed ? Body::kWhole : Body::kReference;
  } else {
    constexpr bool kHasLines = kRows == 1 || kRows == kCols;
    constexpr bool kIsUnit = kHasTwoLevels<S> && kCols == kPackUnit;
    constexpr bool kHasAmaxes = IndexOf(kAmaxLengths, kCols) < kAmaxLengths.size();
    constexpr bool kIsPacked =
        std::is_same_v<typename S::Element, E2M1> && kTransposed && S::kLayout.lines_per_scale == 1;
    constexpr bool kIsFlat = kHasLines && kRows <= kPackUnit;
    if (kIsPacked && kIsFlat && kHasAmaxes && (kIsUnit || kHasMxScales<S>)) return Body::kPacked;
    constexpr bool kIsMx = kHasMxScales<S> && kCols == kMxBlock && !kTransposed;
    constexpr bool kIsLong = IndexOf(kBlockLengths, kCols) < kBlockLengths.size();
    constexpr bool kHasFloats = kHasFloatScales<S> && kIsLong && kTransposed;
    const bool fits = ByteScheme<S> && kHasLines && (kIsMx || kHasFloats);
    return fits ? Body::kBlocks : Body::kReference;
  }
}

}  // namespace narrowfloat::cpu
