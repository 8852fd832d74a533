// SPDX-License-Identifier: Apache-2.0
// Functions of all kernels that quantize, and those that quantize rows.
#pragma once

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/tile.cuh"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cuda {
namespace {

/// Arguments of a kernel that quantizes.
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
inline constexpr int kBlocks = kTile / kBlockItems<S>;  // of a line of a tile

/// Shared memory beside the tile.
template <Scheme S>
struct SharedAmaxes {
  unsigned square[kBlocks<S> * kBlocks<S>];  // bits of the amaxes of square blocks
  unsigned column[kTile];                    // of columns of blocks longer than a strip
};

/// Errors of 4over6: of each row of a block, for both candidates.
struct SharedErrors {
  float of_row[2][kPasses][kRowsOfPass][kChunks / 2];
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
    return S::Prepare(out.amax.Get(), args.options);
  }
}

template <Scheme S>
__device__ __forceinline__ bool UsesFourOverSix(const typename S::TensorState& state) {
  if constexpr (FourOverSixScheme<S>) {
    return S::UsesFourOverSix(state);
  } else {
    return false;
  }
}

__device__ __forceinline__ RandomState RandomOf(const QuantizeArguments& args) {
  if (args.random_at == nullptr) return args.random;
  return {args.random_at[0], args.random_at[1]};
}

/// Stores the scale of the block at position `pos` of `line`, if it is the first of the lines that
/// share it.
template <Scheme S>
__device__ __forceinline__ void StoreScale(const DirectionMemory<std::byte>& out, std::size_t line,
                                           std::size_t pos, std::uint32_t scale_inv) {
  if (line % S::kLayout.lines_per_scale != 0) return;
  const std::size_t item =
      out.strides.LineOffset(ScaleLine<S>(line)) + out.strides.BlockOffset(ScaleBlockIndex<S>(pos));
  if constexpr (kScaleBytes<S> == 4) {
    StoreFloat(out.scale_inv + item * 4, std::bit_cast<float>(scale_inv));
  } else {
    out.scale_inv[item] = static_cast<std::byte>(scale_inv);
  }
}

/// Writes the sums of the columns of a tile in shared memory. A tile has as many rows as a strip.
template <class T>
__device__ __forceinline__ void StoreStripSums(const QuantizeArguments& args,
                                               const TileOrigin& origin, const std::byte* tile) {
  static_assert(kTile == kSumStripRows);
  constexpr int kWordsOfPair = static_cast<int>(kItemSize<T>) / 2;
  const int pair = static_cast<int>(threadIdx.x);  // of adjacent columns
  const MatrixShape shape = args.in.shape;
  const std::size_t col = origin.col + static_cast<std::size_t>(pair * 2);
  if (pair >= kTile / 2 || col >= shape.cols) return;
  const auto* words = reinterpret_cast<const std::uint32_t*>(tile) + pair * kWordsOfPair;
  const std::size_t left = shape.rows - origin.row;
  const int rows = static_cast<int>(left < kTile ? left : kTile);
  float low = 0.0f, high = 0.0f;
#pragma unroll 8
  for (int row = 0; row < rows; ++row, words += kTile / 2 * kWordsOfPair) {
    if constexpr (kWordsOfPair == 2) {
      low += std::bit_cast<float>(words[0]);
      high += std::bit_cast<float>(words[1]);
    } else {
      low += Widen<T>(words[0] & 0xFFFFu);
      high += Widen<T>(words[0] >> 16);
    }
  }
  float* sums = args.strip_sums + origin.row / kTile * shape.cols + col;
  sums[0] = low;
  if (col + 1 < shape.cols) sums[1] = high;
}

// Functions that few calls need are out of line: inlined for every item, they make kernels several
// times as long, which then take minutes to compile.

/// Adds the terms of 4over6's error of the first `count` of 8 items to `sum`, in order.
template <Scheme S>
__device__ NF_NOINLINE float AddErrors(typename S::TensorState state, EightFloats items, int count,
                                       BlockScale scale, float sum) {
  const auto add = [&](int i, float item) {
    if (i >= count) return;
    const std::uint32_t code = EncodeItem<typename S::Element>(item * scale.scale);
    sum += S::Error(code, scale.scale_inv, item, state);
  };
  add(0, items.low.x);
  add(1, items.low.y);
  add(2, items.low.z);
  add(3, items.low.w);
  add(4, items.high.x);
  add(5, items.high.y);
  add(6, items.high.z);
  add(7, items.high.w);
  return sum;
}

/// Returns 8 codes of 4 bits, rounded stochastically with the first or second half of a run's
/// random bytes.
[[maybe_unused]] static __device__ NF_NOINLINE std::uint32_t StochasticWord(EightFloats scaled,
                                                                            RandomState state,
                                                                            std::uint64_t run,
                                                                            bool second) {
  const PhiloxWords words = RandomWords(state, run);
  const auto four = [](const float4& v, std::uint32_t random) {
    const auto one = [&](float x, int i) {
      return EncodeStochastic(x, static_cast<std::uint8_t>(random >> (8 * i))) << (4 * i);
    };
    return one(v.x, 0) | one(v.y, 1) | one(v.z, 2) | one(v.w, 3);
  };
  return four(scaled.low, second ? words[2] : words[0]) |
         four(scaled.high, second ? words[3] : words[1]) << 16;
}

/// Returns the error of 16 items of a row, which two threads hold, for one candidate.
template <Scheme S, class T>
__device__ __forceinline__ float RowError(const typename S::TensorState& state,
                                          const Chunk<T>& chunk, int valid,
                                          const BlockScale& candidate) {
  const EightFloats items = EightFloats::Of([&](int i) { return chunk.Item(i); });
  // Adds in the order of the items: the first thread's, then the second's.
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float first =
      __shfl_sync(kAllLanes, AddErrors<S>(state, items, valid, candidate, 0.0f), lane & ~1);
  return __shfl_sync(kAllLanes, AddErrors<S>(state, items, valid, candidate, first), lane | 1);
}

/// Chooses between 4over6's candidates for blocks of 16 items of a row.
template <Scheme S, class T>
__device__ __forceinline__ BlockScale ChooseOfRow(const typename S::TensorState& state,
                                                  const Chunk<T>& chunk, float amax, int valid) {
  const auto candidates = S::Candidates(amax, state);
  const float to_four = RowError<S, T>(state, chunk, valid, candidates[0]);
  const float to_six = RowError<S, T>(state, chunk, valid, candidates[1]);
  return to_four < to_six ? candidates[0] : candidates[1];
}

/// Writes the errors of a row of a square block to shared memory.
template <Scheme S, class T>
__device__ __forceinline__ void StoreRowErrors(const typename S::TensorState& state,
                                               const Chunk<T>& chunk, float amax, int valid,
                                               int pass, SharedErrors& errors) {
  const auto candidates = S::Candidates(amax, state);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float error = RowError<S, T>(state, chunk, valid, candidates[c]);
    if (threadIdx.x % 2 == 1)
      errors.of_row[c][pass][threadIdx.x / kChunks][threadIdx.x % kChunks / 2] = error;
  }
}

/// Adds the errors of the rows by halves.
[[maybe_unused]] __device__ NF_NOINLINE float BlockError(const SharedErrors& errors, int candidate,
                                                         int pass, int block) {
  float sums[kRowsOfPass];
#pragma unroll
  for (int i = 0; i < kRowsOfPass; ++i) sums[i] = errors.of_row[candidate][pass][i][block];
#pragma unroll
  for (int half = kRowsOfPass / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

/// Encodes a chunk of a row and stores the codes.
template <Scheme S, class T>
__device__ __forceinline__ void EncodeChunk(const QuantizeArguments& args, const Chunk<T>& chunk,
                                            float scale, std::size_t row, std::size_t col,
                                            int valid) {
  using F = typename S::Element;
  constexpr int kPerWord = 32 / kBits<F>, kWords = kItems / kPerWord;
  std::uint32_t codes[kWords];
  bool done = false;
  if constexpr (S::kOptions.Has(Option::kStochasticRounding)) {
    if (args.stochastic) {
      const std::size_t runs = CeilDiv(args.in.shape.cols, kRandomRun);
      codes[0] =
          StochasticWord(EightFloats::Of([&](int i) { return chunk.Item(i) * scale; }),
                         RandomOf(args), row * runs + col / kRandomRun, col % kRandomRun != 0);
      done = true;
    }
  }
  if (!done) {
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      codes[w] = EncodeWord<F>([&](int i) { return chunk.Item(w * kPerWord + i) * scale; });
  }
  std::byte* to = args.rowwise.codes + row * args.rowwise.code_stride + col * kBits<F> / 8;
  StoreBytes<kWords * 4>(to, codes, static_cast<std::size_t>(valid * kBits<F> / 8),
                         args.rowwise_is_aligned);
}

/// Returns the amax of the block that a chunk belongs to, from the amaxes of the block's chunks.
template <Scheme S>
__device__ __forceinline__ float AmaxOfRowBlock(float amax) {
#pragma unroll
  for (int step = 1; step < kBlockItems<S> / kItems; step *= 2)
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
  return amax;
}

/// Returns the scale of the block of a row that a chunk belongs to, and stores it.
template <Scheme S, class T>
__device__ __forceinline__ float RowScale(const QuantizeArguments& args,
                                          const typename S::TensorState& tensor_state,
                                          const Chunk<T>& chunk, float amax, std::size_t row,
                                          std::size_t col, int valid, int pass,
                                          const SharedErrors* errors) {
  typename S::TensorState state = tensor_state;
  if (args.rowwise.line_amaxes != nullptr)
    state = S::Prepare(valid > 0 ? args.rowwise.line_amaxes[row] : 0.0f, args.options);
  BlockScale scale;
  bool chosen = false;
  if constexpr (FourOverSixScheme<S>) {
    if (UsesFourOverSix<S>(state)) {
      if constexpr (kIsSquare<S>) {
        const int block = static_cast<int>(threadIdx.x) % kChunks * kItems / kBlockItems<S>;
        const auto candidates = S::Candidates(amax, state);
        scale = BlockError(*errors, 0, pass, block) < BlockError(*errors, 1, pass, block)
                    ? candidates[0]
                    : candidates[1];
      } else {
        scale = ChooseOfRow<S, T>(state, chunk, amax, valid);
      }
      chosen = true;
    }
  }
  if (!chosen) scale = S::ScaleBlock(amax, state);
  if (valid > 0 && col % static_cast<std::size_t>(kBlockItems<S>) == 0)
    StoreScale<S>(args.rowwise, row, col, scale.scale_inv);
  return scale.scale;
}

/// Finds the scales of the blocks of a row that 4 passes' chunks belong to, and stores them. The
/// threads of a block take a pass each.
template <Scheme S>
__device__ __forceinline__ void FindRowScales(const QuantizeArguments& args,
                                              const typename S::TensorState& state,
                                              const float (&amaxes)[kPassesAtOnce],
                                              const TilePlace& place, int first,
                                              float (&scales)[kPassesAtOnce]) {
  constexpr int kThreadsOfBlock = kBlockItems<S> / kItems;
  constexpr int kShares = kThreadsOfBlock < kPassesAtOnce ? kThreadsOfBlock : kPassesAtOnce;
  static_assert(kPassesAtOnce % kShares == 0);
  const int lane = static_cast<int>(threadIdx.x % 32), own = lane % kShares;
  const std::size_t col =
      place.col_of_tensor - place.col_of_tensor % static_cast<std::size_t>(kBlockItems<S>);
#pragma unroll
  for (int part = 0; part < kPassesAtOnce; part += kShares) {
    float amax = amaxes[part];
#pragma unroll
    for (int i = 1; i < kShares; ++i) amax = own == i ? amaxes[part + i] : amax;
    const BlockScale scale = S::ScaleBlock(amax, state);
    const std::size_t row = place.Row(first + part + own);
    if (lane % kThreadsOfBlock < kShares && row < args.in.shape.rows && col < args.in.shape.cols)
      StoreScale<S>(args.rowwise, row, col, scale.scale_inv);
#pragma unroll
    for (int i = 0; i < kShares; ++i)
      scales[part + i] = __shfl_sync(kAllLanes, scale.scale, (lane & ~(kThreadsOfBlock - 1)) | i);
  }
}

}  // namespace
}  // namespace narrowfloat::cuda
