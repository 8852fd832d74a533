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

/// Elements that share a scale, as they lie in a row-major matrix for rowwise quantization.
/// Columnwise quantization uses the transposed shape.
struct BlockShape {
  std::size_t rows, cols;
  constexpr bool operator==(const BlockShape&) const = default;
};
inline constexpr BlockShape kWholeTensor{0, 0};

/// How a scale is stored.
enum class ScaleType : std::uint8_t { kFloat32, kE8M0, kE4M3 };

/// Scales form a matrix per direction. A *line* is a row of the input for rowwise, a column for
/// columnwise; along a line the *blocks* follow each other. kLineMajor stores [line][block],
/// kBlockMajor [block][line].
enum class ScaleOrder : std::uint8_t { kLineMajor, kBlockMajor };

/// Which amax buffers belong to a quantized tensor.
enum class AmaxBuffers : std::uint8_t { kNone, kOne, kPerDirection };

/// Where things lie. Everything that asks for a shape, a padding or an offset reads it from here.
struct SchemeLayout {
  ScaleType scale_type;
  ScaleOrder rowwise_order, columnwise_order;
  std::size_t lines_per_scale;  // lines that share one stored scale; 0: the tensor has a single one
  std::size_t line_multiple;    // the stored scale matrix is padded to these multiples
  std::size_t block_multiple;
  bool columnwise_transposed;  // columnwise codes lie transposed, last dimension first
  bool swizzles;               // scales may be stored in the 128x4 tiles that GEMMs read
  bool stores_scale;           // the multiplier is a buffer too
  AmaxBuffers amax;
};

/// What one block's amax decides.
struct BlockScale {
  std::uint32_t scale_inv;  // as stored: an fp32 pattern or a code
  float scale;              // what the block's elements are multiplied by
};

/// A scaling scheme: how a tensor is cut into blocks, and three pure functions.
/// Prepare runs once per tensor, ScaleBlock once per block; DecodeScale gives what a decoded code
/// is multiplied by.
template <class S>
concept Scheme = FloatFormat<typename S::Element> &&
    requires(float amax, const ScaleOptions& options, const typename S::TensorState& state,
             std::uint32_t scale_inv) {
  { S::kId } -> std::convertible_to<std::uint16_t>;
  { S::kName } -> std::convertible_to<std::string_view>;
  { S::kBlock } -> std::convertible_to<BlockShape>;
  { S::kLayout } -> std::convertible_to<SchemeLayout>;
  { S::kOptions } -> std::convertible_to<OptionSet>;
  { S::kOnByDefault } -> std::convertible_to<OptionSet>;  // of its options, those that are flags
  { S::Prepare(amax, options) } -> std::same_as<typename S::TensorState>;
  { S::ScaleBlock(amax, state) } -> std::same_as<BlockScale>;
  { S::DecodeScale(scale_inv, state) } -> std::same_as<float>;
};

/// A scheme that, by its options, has to look at a block to choose between two scales.
template <class S>
concept ChoosingScheme = Scheme<S> &&
    requires(float x, std::uint32_t code, const typename S::TensorState& state) {
  { S::Chooses(state) } -> std::same_as<bool>;
  { S::Candidates(x, state) } -> std::same_as<std::array<BlockScale, 2>>;
  { S::Error(code, code, x, state) } -> std::same_as<float>;
};

/// A block's scale is a narrow float under a scale of the whole tensor.
template <class S>
concept TwoLevelScheme = Scheme<S> && requires(const typename S::TensorState& state) {
  typename S::Scale;
  { state.encode_over_max } -> std::convertible_to<float>;
  { state.reciprocal_encode } -> std::convertible_to<float>;
};

/// Codes of a byte each, which vector code handles alike.
template <class S>
concept ByteScheme = Scheme<S> && kBits<typename S::Element>
== 8;

/// The block is the tensor: one scale, known before the first element is encoded.
template <class S>
concept WholeTensorScheme = Scheme<S> && S::kBlock == kWholeTensor;

/// Blocks of one row each.
template <class S>
concept RowBlockScheme = Scheme<S> && S::kBlock.rows == 1;

/// Blocks of several rows and columns.
template <class S>
concept TileScheme = Scheme<S> &&(S::kBlock.rows > 1);

}  // namespace narrowfloat
