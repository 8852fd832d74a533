// SPDX-License-Identifier: Apache-2.0
// Lists the driver that quantizes each scheme in each direction, and whether one dequantizes it.
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
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat::cpu {

enum class Driver : std::uint8_t {
  kReference,  // kernels/scalar: schemes that no driver accepts
  kWhole,      // whole_driver.cc: one scale, known in advance
  kBlocks,     // block_driver.cc: blocks of 32, 64 and 128, and squares of them; codes of 8 bits
  kPacked,     // packed_driver.cc: codes of 4 bits; columnwise codes are stored transposed
};

/// The class (a scheme or a base of one) whose Prepare, ScaleBlock and DecodeScale the
/// micro-kernels compute, chosen by the type of the scales.
template <Scheme S, class F = typename S::Element>
using ScaleRuleOf = std::conditional_t<
    S::kLayout.scale_type == ScaleType::kE8M0, MxRule<F>,
    std::conditional_t<
        S::kLayout.scale_type == ScaleType::kE4M3, Nvfp4Rule<S::kBlock>,
        std::conditional_t<WholeTensorScheme<S>, PerTensorFp8Scheme<F>, Fp8BlockRule<F>>>>;
template <class S>
concept PreparesByRule = std::is_base_of_v<ScaleRuleOf<S>, S> &&
    (&S::Prepare == &ScaleRuleOf<S>::Prepare);
/// A scheme whose scales are computed by its rule, not by a function that hides the rule's.
template <class S>
concept ComputesByRule = PreparesByRule<S> &&(&S::ScaleBlock == &ScaleRuleOf<S>::ScaleBlock);
/// A scheme whose stored scales are decoded by its rule. Only E4M3 scales need the tensor's state,
/// which Prepare computes.
template <class S>
concept DecodesByRule = std::is_base_of_v<ScaleRuleOf<S>, S> &&
                        (&S::DecodeScale == &ScaleRuleOf<S>::DecodeScale) &&
                        (PreparesByRule<S> || S::kLayout.scale_type != ScaleType::kE4M3);

template <Scheme S>
inline constexpr bool kHasBytes =
    IndexIn<typename S::Element>(MicroFormats{}) < MicroFormats::kSize;
template <Scheme S>
inline constexpr bool kHasNibbles = std::is_same_v<typename S::Element, E2M1>;

/// Returns the driver for a scheme and a direction. Each condition is a requirement of the driver's
/// code.
template <Scheme S>
constexpr Driver DriverOf(Direction direction) {
  constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;
  constexpr ScaleType kType = S::kLayout.scale_type;
  constexpr bool kTransposed = S::kLayout.columnwise_transposed;
  // Not used: the directions of such schemes are quantized in separate passes.
  if (direction == Direction::kBoth &&
      !JoinsDirections(S::kBlock, kBits<typename S::Element>, kTransposed))
    return Driver::kReference;
  if (WholeTensorScheme<S>)
    return kHasBytes<S> && kTransposed ? Driver::kWhole : Driver::kReference;
  if (!ComputesByRule<S> || !(kRows == 1 || kRows == kCols)) return Driver::kReference;
  constexpr bool kIsMx = kType == ScaleType::kE8M0;
  constexpr bool kHasAmaxes = IndexOf(kAmaxLengths, kCols) < kAmaxLengths.size();
  constexpr bool kIsUnit = kType == ScaleType::kE4M3 && kCols == kPackUnit;
  constexpr bool kIsFlat = kRows <= kPackUnit && S::kLayout.lines_per_scale == 1;
  if (kHasNibbles<S> && kTransposed && kIsFlat && (kIsUnit || (kIsMx && kHasAmaxes)))
    return Driver::kPacked;
  constexpr bool kIsShort = kIsMx && kCols == kMxBlock && !kTransposed;
  constexpr bool kHasFloats = kType == ScaleType::kFloat32 && kTransposed;
  constexpr bool kIsLong = IndexOf(kBlockLengths, kCols) < kBlockLengths.size();
  const bool fits = kHasBytes<S> && (kIsShort || (kHasFloats && kIsLong));
  return fits ? Driver::kBlocks : Driver::kReference;
}

/// Returns true if decode_driver.cc dequantizes a scheme in a direction. Requires: not kBoth.
template <Scheme S>
constexpr bool HasDecoder(Direction direction) {
  constexpr bool kIsWhole = WholeTensorScheme<S>;
  constexpr std::size_t kBlock = S::kBlock.cols, kLines = S::kLayout.lines_per_scale;
  constexpr bool kHasBlocks = std::has_single_bit(kBlock) &&
                              kBlock >= ShortestDecodedBlock(kBits<typename S::Element>) &&
                              kBlock <= kDecodeSide && std::has_single_bit(kLines);
  if (!DecodesByRule<S> || !(kHasBytes<S> || (kHasNibbles<S> && !kIsWhole))) return false;
  constexpr bool kTransposed = S::kLayout.columnwise_transposed;
  if (direction == Direction::kRowwise) return kIsWhole || kHasBlocks;
  // The requirements of ScaleReader::ReadPatch.
  if (kHasNibbles<S>) return kHasBlocks && kTransposed && kScaleBytes<S> == 1 && kLines == 1;
  return kHasBlocks || (kIsWhole && kTransposed);
}

/// The drivers of a scheme by direction.
struct SchemeDrivers {
  std::array<Driver, kDirectionCount> quantize;
  std::array<bool, kDirectionCount> decodes;
  std::size_t format;  // index of the codes' format in ElementFormats
};
inline constexpr auto kSchemeDrivers = ArrayOf(AllSchemes{}, []<class S>() {
  return SchemeDrivers{{DriverOf<S>(Direction::kRowwise), DriverOf<S>(Direction::kColumnwise),
                        DriverOf<S>(Direction::kBoth)},
                       {HasDecoder<S>(Direction::kRowwise), HasDecoder<S>(Direction::kColumnwise)},
                       IndexIn<typename S::Element>(ElementFormats{})};
});

}  // namespace narrowfloat::cpu
