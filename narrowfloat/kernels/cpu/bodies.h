// SPDX-License-Identifier: Apache-2.0
// Says which driver quantizes a scheme in a direction, and what the driver of decoding dequantizes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "narrowfloat/kernels/cpu/decode_kernels.h"
#include "narrowfloat/kernels/cpu/pack_kernels.h"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/fp8_tensor.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/nvfp4.h"

namespace narrowfloat::cpu {

enum class Body : std::uint8_t {
  kReference,  // kernels/scalar: what no driver takes
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

/// Returns the body for a scheme and a direction. Each condition is what the body's code requires
/// of a scheme.
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

/// Returns true if the scales of S are decoded by `Rule`.
template <Scheme S, class Rule>
constexpr bool DecodesBy() {
  if constexpr (std::is_base_of_v<Rule, S>) {
    return &S::DecodeScale == &Rule::DecodeScale;
  } else {
    return false;
  }
}
/// Returns true if a micro-kernel decodes the scales of S.
template <Scheme S>
constexpr bool HasKnownScales() {
  using F = typename S::Element;
  constexpr ScaleType kType = S::kLayout.scale_type;
  if constexpr (kType == ScaleType::kE8M0) return DecodesBy<S, MxRule<F> >();
  if constexpr (kType == ScaleType::kE4M3) return DecodesBy<S, Nvfp4Rule<S::kBlock> >();
  if constexpr (kType == ScaleType::kFloat32)
    return DecodesBy<S, Fp8BlockRule<F> >() || DecodesBy<S, PerTensorFp8Scheme<F> >();
}

/// Returns true if decode_driver.cc dequantizes a scheme in a direction.
template <Scheme S>
constexpr bool HasDecoder(Direction direction) {
  using F = typename S::Element;
  constexpr bool kIsByte = std::is_same_v<F, E4M3> || std::is_same_v<F, E5M2>;
  constexpr bool kIsPacked = std::is_same_v<F, E2M1> && !WholeTensorScheme<S>;
  constexpr std::size_t kBlock = S::kBlock.cols, kLines = S::kLayout.lines_per_scale;
  constexpr bool kHasBlocks = std::has_single_bit(kBlock) && kBlock >= (kIsByte ? 32 : 16) &&
                              kBlock <= kDecodeSide && std::has_single_bit(kLines);
  if (!HasKnownScales<S>() || !(kIsByte || kIsPacked)) return false;
  if (direction == Direction::kRowwise) return WholeTensorScheme<S> || kHasBlocks;
  if (S::kLayout.columnwise_transposed) return WholeTensorScheme<S> || kHasBlocks;
  return kIsByte && kHasBlocks && direction == Direction::kColumnwise;
}

/// The bodies of a scheme by direction.
struct SchemeBodies {
  std::array<Body, kDirectionCount> quantize;
  std::array<bool, kDirectionCount> decodes;
  std::size_t format;  // of the codes, in ElementFormats
};
inline constexpr auto kBodies = ArrayOf(AllSchemes{}, []<class S>() {
  return SchemeBodies{{BodyOf<S>(Direction::kRowwise), BodyOf<S>(Direction::kColumnwise),
                       BodyOf<S>(Direction::kBoth)},
                      {HasDecoder<S>(Direction::kRowwise), HasDecoder<S>(Direction::kColumnwise)},
                      IndexIn<typename S::Element>(ElementFormats{})};
});

}  // namespace narrowfloat::cpu
