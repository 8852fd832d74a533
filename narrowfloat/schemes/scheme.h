// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/numerics/host_device.h"
#include "narrowfloat/numerics/scale.h"
#include "narrowfloat/schemes/options.h"

namespace narrowfloat {

/// Elements that share a scale, as a rectangle of a row-major matrix, for rowwise quantization.
/// Columnwise quantization uses the transposed shape.
struct BlockShape {
  std::size_t rows, cols;
  constexpr bool operator==(const BlockShape&) const = default;
};
inline constexpr BlockShape kWholeTensor{0, 0};

/// Stored type of a scale.
enum class ScaleType : std::uint8_t { kFloat32, kE8M0, kE4M3 };
inline constexpr std::size_t kScaleTypeCount = 3;

/// Scales form a matrix per direction. A *line* is a row of the input for rowwise, a column for
/// columnwise; along a line the *blocks* follow each other. kLineMajor stores [line][block],
/// kBlockMajor [block][line].
enum class ScaleOrder : std::uint8_t { kLineMajor, kBlockMajor };

/// Amax buffers of a quantized tensor.
enum class AmaxBuffers : std::uint8_t { kNone, kOne, kPerDirection };

/// Tile of the layout that GEMMs read: 128 lines by 4 blocks, 512 bytes. 16-byte group i of 32
/// holds the 4 scales of each of the lines i, i + 32, i + 64 and i + 96.
inline constexpr std::size_t kSwizzleLines = 128, kSwizzleQuarter = 32, kSwizzleBlocks = 4;

/// Layout of codes and scales. Every shape, padding and offset is computed from it.
struct SchemeLayout {
  ScaleType scale_type;
  ScaleOrder rowwise_order, columnwise_order;
  std::size_t lines_per_scale;  // lines that share one stored scale; 0: one scale per tensor
  std::size_t line_multiple;    // the stored scale matrix is padded to these multiples
  std::size_t block_multiple;
  bool columnwise_transposed;  // columnwise codes are stored transposed, last dimension first
  bool swizzles;               // scales may be stored in the tiles that GEMMs read
  bool stores_scale;           // the scale is a buffer too
  AmaxBuffers amax;
};

/// Result of scaling one block.
struct BlockScale {
  std::uint32_t scale_inv;  // stored bits: of an fp32 number, or a code
  float scale;              // factor of the block's elements
};

/// A scaling scheme: how a tensor is cut into blocks, and three pure functions.
/// Prepare runs once per tensor (with row_scaled, once per line), ScaleBlock once per block;
/// DecodeScale returns the factor of a decoded code.
template <class S>
concept Scheme = FloatFormat<typename S::Element> &&
    requires(float amax, const ScaleOptions& options, const typename S::TensorState& state,
             std::uint32_t scale_inv) {
  { S::kBlock } -> std::convertible_to<BlockShape>;
  { S::kLayout } -> std::convertible_to<SchemeLayout>;
  { S::kOptions } -> std::convertible_to<OptionSet>;
  { S::kOnByDefault } -> std::convertible_to<OptionSet>;  // its flags that are on by default
  { S::Prepare(amax, options) } -> std::same_as<typename S::TensorState>;
  { S::ScaleBlock(amax, state) } -> std::same_as<BlockScale>;
  { S::DecodeScale(scale_inv, state) } -> std::same_as<float>;
};

/// A row of the registry: a scheme, its name and its id. Files and XLA attributes store the id; it
/// is never reused.
template <Scheme S>
struct Entry {
  using Type = S;
  std::uint16_t id;
  std::string_view name;
};

/// A scheme that, under some options, chooses a block's scale out of two by the block's values.
template <class S>
concept FourOverSixScheme = Scheme<S> &&
    requires(float x, std::uint32_t code, const typename S::TensorState& state) {
  { S::UsesFourOverSix(state) } -> std::same_as<bool>;
  { S::Candidates(x, state) } -> std::same_as<std::array<BlockScale, 2>>;
  { S::Error(code, code, x, state) } -> std::same_as<float>;
};

/// A scheme with narrow floats as block scales, which one fp32 scale per tensor scales.
template <class S>
concept TwoLevelScheme = Scheme<S> &&
    requires(float x, std::uint32_t code, const typename S::TensorState& state) {
  typename S::Scale;
  { state.encode_over_max } -> std::convertible_to<float>;
  { state.reciprocal_encode } -> std::convertible_to<float>;
  { S::WantedScale(x, state) } -> std::same_as<float>;
  { S::FactorOfCode(code, state) } -> std::same_as<float>;
};

/// A scheme with one scale for the whole tensor, known before the first element is encoded.
template <class S>
concept WholeTensorScheme = Scheme<S> && S::kBlock == kWholeTensor;

}  // namespace narrowfloat
