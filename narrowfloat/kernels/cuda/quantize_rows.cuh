// SPDX-License-Identifier: Apache-2.0
// Functions of all quantizing kernels, and functions that quantize rows.
#pragma once

#include <type_traits>

#include "narrowfloat/kernels/cuda/block_scales.cuh"
#include "narrowfloat/kernels/cuda/e2m1.cuh"
#include "narrowfloat/kernels/cuda/e2m1_words.cuh"
#include "narrowfloat/kernels/cuda/four_over_six.cuh"
#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/tile.cuh"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cuda {
namespace {

/// Arguments of a quantizing kernel.
struct QuantizeArguments {
  Rows<const std::byte> in;
  DirectionMemory<std::byte> rowwise, columnwise;
  bool rowwise_is_aligned, columnwise_is_aligned;  // codes, for whole words
  ScaleOptions options;
  const float* tensor_scale;
  unsigned* amax_bits;
  float* strip_sums;
  bool stochastic;
  RandomState random;
  const std::uint64_t* random_at;
  bool transforms;
  std::uint32_t sign_mask;
  const float* noop;
};

template <Scheme S>
inline constexpr bool kIsSquare = !WholeTensorScheme<S> && S::kBlock.rows == S::kBlock.cols;

/// Items of a block along a line; the tile for a whole tensor.
template <Scheme S>
inline constexpr int kBlockItems = WholeTensorScheme<S> ? kTile : static_cast<int>(S::kBlock.cols);

template <Scheme S>
inline constexpr int kBlocks = kTile / kBlockItems<S>;  // blocks per line of a tile

/// Items of a row that a thread processes together: 8 bytes of codes.
template <Scheme S>
inline constexpr int kChunkItems = 64 / kBits<typename S::Element>;
template <Scheme S>
using Place = TilePlace<kChunkItems<S>>;
template <Scheme S, class T>
using ChunkOf = Chunk<T, kChunkItems<S>>;

/// Features of a kernel besides nearest rounding. Each is compiled separately, since all of them
/// together need more registers.
enum class Extras : std::uint8_t {
  kNone,
  kTransform,   // the Hadamard transform of columns
  kStochastic,  // stochastic rounding; that transform is optional
  kOptions,     // both optional; 4over6, an amax per line, two scales of a square
};

/// True if the scales of a tile's columns are collected in shared memory: the scales of one column
/// are adjacent bytes, and far from the scales of the next one.
template <Scheme S>
inline constexpr bool kCollectsScales = kBits<typename S::Element> == 4;

/// Shared memory besides the tile.
template <Scheme S>
struct SharedAmaxes {
  unsigned square[kBlocks<S> * kBlocks<S>];  // bits of the amaxes of square blocks
  unsigned column[kTile];                    // bits of the amaxes of blocks longer than a strip
  unsigned largest;                          // bits of the largest magnitude of the items
  alignas(4) std::uint8_t scales[kCollectsScales<S> ? kTile : 1][kBlocks<S>];  // of columns
};

/// Bytes of a tile's items.
template <class T>
inline constexpr std::size_t kTileBytes = std::size_t{kTile} * kTile* kItemSize<T>;

template <Scheme S>
__device__ __forceinline__ typename S::TensorState StateOf(const QuantizeArguments& args,
                                                           const DirectionMemory<std::byte>& out) {
  if constexpr (WholeTensorScheme<S>) {
    return {*args.tensor_scale};
  } else {
    // Computed once for the call, because Prepare() divides.
    if (out.state != nullptr) return reinterpret_cast<const StoredState<S>*>(out.state)->tensor;
    return S::Prepare(out.amax.Get(), args.options);
  }
}

__device__ __forceinline__ RandomState RandomOf(const QuantizeArguments& args) {
  if (args.random_at == nullptr) return args.random;
  return {args.random_at[0], args.random_at[1]};
}

template <Scheme S>
__device__ __forceinline__ void StoreScaleAt(std::byte* to, std::uint32_t scale_inv) {
  if constexpr (kScaleBytes<S> == 4) {
    StoreFloat(to, std::bit_cast<float>(scale_inv));
  } else {
    *to = static_cast<std::byte>(scale_inv);
  }
}

/// Stores the scale of the block at position `pos` of `line`, if it is the first of the lines that
/// share it.
template <Scheme S>
__device__ __forceinline__ void StoreScale(const DirectionMemory<std::byte>& out, std::size_t line,
                                           std::size_t pos, std::uint32_t scale_inv) {
  if (line % S::kLayout.lines_per_scale != 0) return;
  const std::size_t item =
      out.strides.LineOffset(ScaleLine<S>(line)) + out.strides.BlockOffset(ScaleBlockIndex<S>(pos));
  StoreScaleAt<S>(out.scale_inv + item * kScaleBytes<S>, scale_inv);
}

/// Stores the scales of 4 blocks of a column of a tile, from block `block` on. Stores all at once
/// if they are one word in memory. Requires: `scales` is aligned to 4 bytes. kPlain: the tile is
/// inside.
template <Scheme S, bool kPlain>
__device__ __forceinline__ void StoreFourScales(const QuantizeArguments& args,
                                                const TileOrigin& origin, int column, int block,
                                                const std::uint8_t* scales) {
  static_assert(kCollectsScales<S> && kSwizzleBlocks == 4 && kBlocks<S> % 4 == 0);
  const DirectionMemory<std::byte>& out = args.columnwise;
  const MatrixShape shape = args.in.shape;
  const std::size_t line = origin.col + static_cast<std::size_t>(column);
  const std::size_t row = origin.row + static_cast<std::size_t>(block * kBlockItems<S>);
  if (!kPlain && (line >= shape.cols || row >= shape.rows)) return;
  std::byte* to = out.scale_inv + out.strides.LineOffset(line) +
                  out.strides.BlockOffset(ScaleBlockIndex<S>(row));
  if ((kPlain || row + 4 * kBlockItems<S> <= shape.rows) && out.strides.block == 1 &&
      reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(to) = *reinterpret_cast<const std::uint32_t*>(scales);
    return;
  }
#pragma unroll 1
  for (std::size_t i = 0; i < 4 && row + i * kBlockItems<S> < shape.rows; ++i)
    to[i * out.strides.block] = static_cast<std::byte>(scales[i]);
}

/// Writes the sums of the columns of a tile in shared memory. A tile has as many rows as a strip.
template <class T>
__device__ __forceinline__ void StoreStripSums(const QuantizeArguments& args,
                                               const TileOrigin& origin, const std::byte* tile) {
  static_assert(kTile == kSumStripRows);
  using Item = std::conditional_t<kItemSize<T> == 4, float, std::uint16_t>;
  const MatrixShape shape = args.in.shape;
  const int column = static_cast<int>(threadIdx.x);
  const std::size_t col = origin.col + static_cast<std::size_t>(column);
  if (column >= kTile || col >= shape.cols) return;
  const Item* item = reinterpret_cast<const Item*>(tile) + column;
  const std::size_t left = shape.rows - origin.row;
  const int rows = static_cast<int>(left < kTile ? left : kTile);
  float sum = 0.0f;
#pragma unroll 16
  for (int row = 0; row < rows; ++row, item += kTile) {
    if constexpr (kItemSize<T> == 4) {
      sum += *item;
    } else {
      sum += Widen<T>(*item);
    }
  }
  args.strip_sums[origin.row / kTile * shape.cols + col] = sum;
}

/// Stores the first `count` of 8 bytes at any address.
[[maybe_unused]] static __device__ NF_NOINLINE void StoreAnyCodes(std::byte* to, int count,
                                                                  std::uint32_t low,
                                                                  std::uint32_t high) {
  for (int i = 0; i < count; ++i) {
    const std::uint32_t word = i < 4 ? low : high;
    to[i] = static_cast<std::byte>(word >> (i % 4 * 8));
  }
}

/// Returns true if a call rounds stochastically.
template <Extras kExtras>
__device__ __forceinline__ bool IsStochastic(const QuantizeArguments& args) {
  return kExtras == Extras::kStochastic || (kExtras == Extras::kOptions && args.stochastic);
}

/// Computes the codes of 16 items by nearest rounding, or with the random bytes of a run.
template <Extras kExtras, class Item>
__device__ __forceinline__ void EncodeSixteen(const QuantizeArguments& args, const Item& item,
                                              float scale, bool is_special,
                                              [[maybe_unused]] std::uint64_t run,
                                              std::uint32_t (&codes)[2]) {
  const auto later = [&](int i) { return item(i + 8); };
  if (IsStochastic<kExtras>(args)) {
    const PhiloxWords random = RandomWords(RandomOf(args), run);
    if (is_special) {
      codes[0] = EncodeEightStochasticSpecial(
          EightFloats::Of([&](int i) { return item(i) * scale; }), random[0], random[1]);
      codes[1] = EncodeEightStochasticSpecial(
          EightFloats::Of([&](int i) { return later(i) * scale; }), random[2], random[3]);
    } else {
      codes[0] = EncodeEightStochastic(item, scale, random[0], random[1]);
      codes[1] = EncodeEightStochastic(later, scale, random[2], random[3]);
    }
  } else if (is_special) {
    codes[0] = EncodeEightSpecial(EightFloats::Of([&](int i) { return item(i) * scale; }));
    codes[1] = EncodeEightSpecial(EightFloats::Of([&](int i) { return later(i) * scale; }));
  } else {
    codes[0] = EncodeEight(item, scale);
    codes[1] = EncodeEight(later, scale);
  }
}

/// Addresses of a thread's codes and scales of rows. kPlain: the tile is inside, and codes are
/// aligned.
template <Scheme S, bool kPlain>
class RowPlace {
 public:
  __device__ __forceinline__ RowPlace(const QuantizeArguments& args, const Place<S>& place)
      : out_(args.rowwise),
        codes_(place.Row(0) * out_.code_stride +
               place.col_of_tensor * kBits<typename S::Element> / 8),
        scales_((out_.strides.LineOffset(place.Row(0)) +
                 out_.strides.BlockOffset(ScaleBlockIndex<S>(place.col_of_tensor))) *
                kScaleBytes<S>),
        is_whole_(kPlain || (place.tile_is_inside && args.rowwise_is_aligned)),
        has_block_(place.col_of_tensor / kBlockItems<S> * kBlockItems<S> < args.in.shape.cols),
        place_(place) {
    static_assert(S::kLayout.lines_per_scale == 1);
    KeepOffset(codes_);
    KeepOffset(scales_);
  }

  /// Stores the scale of a pass's row and the thread's block, if they are in the tensor.
  __device__ __forceinline__ void StoreScale(int pass, std::uint32_t scale_inv) const {
    if (!kPlain && !(has_block_ && place_.Row(pass) < place_.rows)) return;
    // A tile's rows are one of ScaleStrides' groups of 128 lines; pass 0's rows are in its first
    // quarter.
    constexpr int kPassesOfQuarter = static_cast<int>(kSwizzleQuarter) / Place<S>::kRowsOfPass;
    static_assert(kPassesOfQuarter > 0);
    const auto quarter = static_cast<unsigned>(pass / kPassesOfQuarter);
    const auto line = static_cast<unsigned>(pass % kPassesOfQuarter * Place<S>::kRowsOfPass);
    std::byte* to =
        out_.scale_inv + scales_ +
        (quarter * out_.strides.line_quarter + line * out_.strides.line) * kScaleBytes<S>;
    StoreScaleAt<S>(to, scale_inv);
  }
  __device__ __forceinline__ void StoreCodes(int pass, const std::uint32_t (&codes)[2]) const {
    std::byte* to = out_.codes + codes_ +
                    static_cast<std::size_t>(pass * Place<S>::kRowsOfPass) * out_.code_stride;
    if (kPlain || is_whole_) {
      *reinterpret_cast<uint2*>(to) = make_uint2(codes[0], codes[1]);
    } else if (const int valid = place_.Valid(pass); valid > 0) {
      StoreAnyCodes(to, valid * kBits<typename S::Element> / 8, codes[0], codes[1]);
    }
  }

 private:
  const DirectionMemory<std::byte>& out_;
  std::size_t codes_, scales_;  // byte offsets of pass 0's codes and scales
  bool is_whole_, has_block_;
  const Place<S>& place_;
};

/// True for schemes with 4-bit codes and power-of-two scales that scale no item beyond 6: E8M0
/// scales, which are rounded up (MxRule).
template <Scheme S>
inline constexpr bool kScalesByPowers =
    kBits<typename S::Element> == 4 && S::kLayout.scale_type == ScaleType::kE8M0;

/// Returns true if the functions for special items must encode a block: an item may be NaN or
/// infinite (has_special), or the scale is negative. A block of zeros has a negative scale if the
/// tensor's amax is negative and so small that state.encode is infinite.
template <Scheme S>
__device__ __forceinline__ bool IsSpecialBlock(bool has_special, float scale) {
  return has_special || (!kScalesByPowers<S> && !(scale >= 0.0f));
}

/// Returns true if no product of a block without special items saturates. `amax` is the amax of the
/// block, or of the items of the block that are encoded together.
template <Scheme S>
__device__ __forceinline__ bool IsBounded(float amax, float scale) {
  return kScalesByPowers<S> || amax * scale < kFirstSaturated;
}

/// Encodes 16 items of a row with the amax `amax`, by nearest rounding or with the random bytes of
/// a run.
template <Scheme S, class T, Extras kExtras>
__device__ __forceinline__ void EncodeFourBitChunk(const QuantizeArguments& args,
                                                   const ChunkOf<S, T>& chunk, float amax,
                                                   float scale, bool has_special, std::uint64_t run,
                                                   std::uint32_t (&codes)[2]) {
  const bool is_special = IsSpecialBlock<S>(has_special, scale);
  if constexpr (kEncodesWords<T> && kExtras != Extras::kStochastic) {
    if (!IsStochastic<kExtras>(args) && !is_special && IsBounded<S>(amax, scale)) {
      if constexpr (kScalesByPowers<S>) {
        return EncodeRowWordsByPower(chunk.words, scale, codes);
      } else {
        return EncodeRowWords(chunk.words, scale, codes);
      }
    }
  }
  EncodeSixteen<kExtras>(
      args, [&](int i) { return chunk.Item(i); }, scale, is_special, run, codes);
}

/// Encodes a pass's chunk, in a block with `amax` and `scale`, and stores the codes.
template <Scheme S, class T, Extras kExtras, bool kPlain>
__device__ __forceinline__ void EncodeChunk(const QuantizeArguments& args, const Place<S>& place,
                                            const RowPlace<S, kPlain>& out,
                                            const ChunkOf<S, T>& chunk, [[maybe_unused]] float amax,
                                            float scale, bool is_special, int pass) {
  using F = typename S::Element;
  std::uint32_t codes[2];
  if constexpr (kBits<F> == 4) {
    static_assert(kChunkItems<S> == static_cast<int>(kRandomRun));
    const std::size_t runs = CeilDiv(args.in.shape.cols, kRandomRun);
    EncodeFourBitChunk<S, T, kExtras>(args, chunk, amax, scale, is_special,
                                      place.Row(pass) * runs + place.col_of_tensor / kRandomRun,
                                      codes);
  } else {
#pragma unroll
    for (int w = 0; w < 2; ++w)
      codes[w] = EncodeWord<F>([&](int i) { return chunk.Item(w * 4 + i) * scale; });
  }
  out.StoreCodes(pass, codes);
}

/// Returns the amax of a chunk's block, from the amaxes of the block's chunks.
template <Scheme S>
__device__ __forceinline__ float AmaxOfRowBlock(float amax) {
#pragma unroll
  for (int step = 1; step < kBlockItems<S> / kChunkItems<S>; step *= 2)
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
  return amax;
}

/// Returns and stores the scale of the row block of a pass's chunk. `factors` are the factors of
/// `tensor_state`, and null if there is an amax per line.
template <Scheme S, class T, Extras kExtras, bool kPlain>
__device__ __forceinline__ float RowScale(const QuantizeArguments& args,
                                          const typename S::TensorState& tensor_state,
                                          const float* factors, const ChunkOf<S, T>& chunk,
                                          float amax, const Place<S>& place,
                                          const RowPlace<S, kPlain>& out, int pass,
                                          [[maybe_unused]] const SharedErrors* errors) {
  constexpr bool kWithOptions = kExtras == Extras::kOptions;
  const std::size_t row = place.Row(pass);
  const int valid = place.Valid(pass);
  typename S::TensorState state = tensor_state;
  if (kWithOptions && args.rowwise.line_amaxes != nullptr)
    state = S::Prepare(valid > 0 ? args.rowwise.line_amaxes[row] : 0.0f, args.options);
  BlockScale scale;
  bool chosen = false;
  if constexpr (kWithOptions && FourOverSixScheme<S>) {
    if (UsesFourOverSix<S>(state)) {
      const std::array<BlockScale, 2> candidates = CandidatesOf<S>(amax, state, factors);
      float of_candidates[2] = {};
      if constexpr (kIsSquare<S>) {
        errors->OfBlock(pass * place.kRowsOfPass + place.row, place.col / kBlockItems<S>,
                        of_candidates);
      } else {
        FindErrors<S>(
            state, [&](int i) { return chunk.Item(i); }, valid, candidates, of_candidates);
      }
      scale = Choose(candidates, of_candidates);
      chosen = true;
    }
  }
  if (!chosen) scale = ScaleOf<S, kWithOptions>(amax, state, factors);
  if (place.col % kBlockItems<S> == 0) out.StoreScale(pass, scale.scale_inv);
  return scale.scale;
}

/// Computes and stores the scales of the row blocks of some passes' chunks. Each thread of a block
/// computes the scale of another pass.
template <Scheme S, bool kMayLackFactors, bool kPlain, int kCount>
__device__ __forceinline__ void FindRowScales(const typename S::TensorState& state,
                                              const float* factors, const float (&amaxes)[kCount],
                                              const RowPlace<S, kPlain>& out, int first,
                                              float (&scales)[kCount]) {
  constexpr int kThreadsOfBlock = kBlockItems<S> / kChunkItems<S>;
  constexpr int kShares = kThreadsOfBlock < kCount ? kThreadsOfBlock : kCount;
  static_assert(kCount % kShares == 0);
  const int lane = static_cast<int>(threadIdx.x % 32), own = lane % kShares;
#pragma unroll
  for (int part = 0; part < kCount; part += kShares) {
    float amax = amaxes[part];
#pragma unroll
    for (int i = 1; i < kShares; ++i) amax = own == i ? amaxes[part + i] : amax;
    const BlockScale scale = ScaleOf<S, kMayLackFactors>(amax, state, factors);
    if (lane % kThreadsOfBlock < kShares) out.StoreScale(first + part + own, scale.scale_inv);
#pragma unroll
    for (int i = 0; i < kShares; ++i) {
      scales[part + i] =
          kShares == 1 ? scale.scale
                       : __shfl_sync(kAllLanes, scale.scale, (lane & ~(kThreadsOfBlock - 1)) | i);
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cuda
