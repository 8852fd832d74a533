// SPDX-License-Identifier: Apache-2.0
// Quantizes and dequantizes for one scheme, number NF_CUDA_SCHEME of AllSchemes.
//
// A block of 256 threads takes a tile of 128x128 items. Each thread loads 8 items of a row at a
// time, and 4 rows, 16 apart, before it uses them. Rows are encoded from registers; square blocks
// and columns from a copy of the tile in shared memory. Of columns, each warp takes a strip of 32
// rows and 64 columns, and each of its threads two adjacent columns. Their codes are collected in
// shared memory and stored 16 bytes at a time.
#include <cuda_runtime.h>

#include <tuple>

#include "narrowfloat/kernels/cuda/dequantize.cuh"
#include "narrowfloat/kernels/cuda/hadamard.cuh"
#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/scheme_kernels.h"
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

template <Scheme S, class T>
struct TileMemory {
  static constexpr std::size_t kBytes = std::size_t{kTile} * kTile * kItemSize<T>;
};

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

/// Stores a block's scale for each line of the tile that a thread has.
template <Scheme S>
__device__ __forceinline__ void StoreScale(const DirectionMemory<std::byte>& out, std::size_t line,
                                           std::size_t pos, std::uint32_t scale_inv) {
  if constexpr (!WholeTensorScheme<S>) {
    if (line % S::kLayout.lines_per_scale != 0) return;
    const std::size_t item = out.strides.LineOffset(ScaleLine<S>(line)) +
                             out.strides.BlockOffset(ScaleBlockIndex<S>(pos));
    if constexpr (kScaleBytes<S> == 4) {
      StoreFloat(out.scale_inv + item * 4, std::bit_cast<float>(scale_inv));
    } else {
      out.scale_inv[item] = static_cast<std::byte>(scale_inv);
    }
  }
}

// What few calls need is kept out of line: inlined for every item it made kernels several times as
// long, and took minutes to compile.

/// Adds the terms of 4over6's error of `count` items to `sum`, in order.
template <Scheme S>
__device__ NF_NOINLINE float AddErrors(const typename S::TensorState& state, const float* items,
                                       int count, const BlockScale& scale, float sum) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const std::uint32_t code = EncodeItem<typename S::Element>(items[i] * scale.scale);
    sum += S::Error(code, scale.scale_inv, items[i], state);
  }
  return sum;
}

/// Returns 8 codes of 4 bits, rounded stochastically with the first or second half of a run's
/// random bytes.
__device__ NF_NOINLINE std::uint32_t StochasticWord(const float* scaled, const RandomState& state,
                                                    std::uint64_t run, bool second) {
  const auto random = RandomBytes(state, run);
  std::uint32_t word = 0;
#pragma unroll 1
  for (int i = 0; i < 8; ++i)
    word |= EncodeStochastic(scaled[i], random[static_cast<std::size_t>(i + (second ? 8 : 0))])
            << (i * 4);
  return word;
}

// Rows.

/// Returns the error of 16 items of a row, which two threads hold, for one candidate.
template <Scheme S, class T>
__device__ __forceinline__ float RowError(const typename S::TensorState& state,
                                          const Chunk<T>& chunk, int valid,
                                          const BlockScale& candidate) {
  float items[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) items[i] = chunk.Item(i);
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
__device__ NF_NOINLINE float BlockError(const SharedErrors& errors, int candidate, int pass,
                                        int block) {
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
      float scaled[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i) scaled[i] = chunk.Item(i) * scale;
      codes[0] = StochasticWord(scaled, RandomOf(args), row * runs + col / kRandomRun,
                                col % kRandomRun != 0);
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

/// Amax of the block of a row that a chunk belongs to: over its threads.
template <Scheme S>
__device__ __forceinline__ float AmaxOfRowBlock(float amax) {
#pragma unroll
  for (int step = 1; step < kBlockItems<S> / kItems; step *= 2)
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
  return amax;
}

// Columns.

/// Two adjacent columns of a strip, as they are stored.
template <class T>
struct ColumnPair {
  static constexpr int kWordsOfRow = static_cast<int>(kItemSize<T>) / 2;
  std::uint32_t words[kStripRows * kWordsOfRow];

  __device__ __forceinline__ void Load(const std::byte* tile, int row, int col) {
#pragma unroll
    for (int i = 0; i < kStripRows; ++i) {
      const std::byte* from =
          tile + (static_cast<std::size_t>(row + i) * kTile + static_cast<std::size_t>(col)) *
                     kItemSize<T>;
      if constexpr (kWordsOfRow == 1) {
        words[i] = *reinterpret_cast<const std::uint32_t*>(from);
      } else {
        const uint2 both = *reinterpret_cast<const uint2*>(from);
        words[i * 2] = both.x;
        words[i * 2 + 1] = both.y;
      }
    }
  }
  __device__ __forceinline__ float Item(int column, int row) const {
    if constexpr (kWordsOfRow == 2) {
      return std::bit_cast<float>(words[row * 2 + column]);
    } else {
      return Widen<T>(column == 0 ? words[row] & 0xFFFFu : words[row] >> 16);
    }
  }
  __device__ __forceinline__ void Set(int column, int row, std::uint32_t bits) {
    if constexpr (kWordsOfRow == 2) {
      words[row * 2 + column] = bits;
    } else if (column == 0) {
      words[row] = (words[row] & 0xFFFF0000u) | bits;
    } else {
      words[row] = (words[row] & 0xFFFFu) | bits << 16;
    }
  }
  __device__ __forceinline__ void Transform(std::uint32_t sign_mask) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
#pragma unroll
      for (int first = 0; first < kStripRows; first += static_cast<int>(kHadamardSize)) {
        float group[kHadamardSize];
        std::uint32_t out[kHadamardSize];
#pragma unroll
        for (int k = 0; k < static_cast<int>(kHadamardSize); ++k)
          group[k] = Item(column, first + k);
        TransformGroup<T>(group, sign_mask, out);
#pragma unroll
        for (int k = 0; k < static_cast<int>(kHadamardSize); ++k) Set(column, first + k, out[k]);
      }
    }
  }
};

/// Chooses between 4over6's candidates for two columns of 16 items. The errors of a square block's
/// columns are added by halves: each of the first half to that of the second.
template <Scheme S, class T>
__device__ void ChooseOfColumns(const typename S::TensorState (&states)[2],
                                const ColumnPair<T>& pair, const float (&amaxes)[2], int first,
                                int valid_rows, const bool (&is_valid)[2],
                                BlockScale (&scales)[2]) {
  float errors[2][2];  // of a column and a candidate
#pragma unroll
  for (int column = 0; column < 2; ++column) {
    const auto candidates = S::Candidates(amaxes[column], states[column]);
    float items[kBlockItems<S>];
#pragma unroll
    for (int i = 0; i < kBlockItems<S>; ++i) items[i] = pair.Item(column, first + i);
    const int left = valid_rows - first < 0 ? 0 : valid_rows - first;
    const int count = !is_valid[column] ? 0 : left < kBlockItems<S> ? left : kBlockItems<S>;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      errors[column][c] = AddErrors<S>(states[column], items, count, candidates[c], 0.0f);
    }
  }
  if constexpr (kIsSquare<S>) {
    constexpr int kThreadsOfBlock = kBlockItems<S> / 2;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int half = kThreadsOfBlock / 2; half > 0; half /= 2) {
#pragma unroll
        for (int column = 0; column < 2; ++column)
          errors[column][c] += __shfl_down_sync(kAllLanes, errors[column][c], half);
      }
      const float sum = errors[0][c] + errors[1][c];
      errors[0][c] = errors[1][c] =
          __shfl_sync(kAllLanes, sum, static_cast<int>(threadIdx.x % 32) & ~(kThreadsOfBlock - 1));
    }
  }
#pragma unroll
  for (int column = 0; column < 2; ++column) {
    const auto candidates = S::Candidates(amaxes[column], states[column]);
    scales[column] = errors[column][0] < errors[column][1] ? candidates[0] : candidates[1];
  }
}

/// Encodes the columns of a tile, whose items are in shared memory.
template <Scheme S, class T>
__device__ void QuantizeColumns(const QuantizeArguments& args, const TileOrigin& origin,
                                std::byte* tile, SharedAmaxes<S>& amaxes) {
  using F = typename S::Element;
  constexpr int kBlock = kBlockItems<S> < kStripRows ? kBlockItems<S> : kStripRows;
  constexpr int kParts = kStripRows / kBlock;  // blocks of a strip
  constexpr int kPerWord = 32 / kBits<F>;
  constexpr int kWords = kStripRows / kPerWord;  // codes of a column
  constexpr bool kTransposed = S::kLayout.columnwise_transposed;
  const DirectionMemory<std::byte>& out = args.columnwise;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int row = warp / 2 * kStripRows, col = warp % 2 * kStripCols + lane * 2;
  const auto rows_left = static_cast<long long>(args.in.shape.rows - origin.row) - row;
  const int valid_rows = static_cast<int>(rows_left < 0            ? 0
                                          : rows_left < kStripRows ? rows_left
                                                                   : kStripRows);
  bool is_valid[2];
#pragma unroll
  for (int column = 0; column < 2; ++column)
    is_valid[column] = origin.col + static_cast<std::size_t>(col + column) < args.in.shape.cols;

  ColumnPair<T> pair;
  pair.Load(tile, row, col);
  if constexpr (S::kOptions.Has(Option::kHadamard)) {
    if (args.transforms) pair.Transform(args.sign_mask);
  }

  BlockScale scales[kParts][2];
  if constexpr (WholeTensorScheme<S>) {
    scales[0][0] = scales[0][1] = {0, *args.tensor_scale};
  } else {
    typename S::TensorState states[2] = {StateOf<S>(args, out), StateOf<S>(args, out)};
    if (out.line_amaxes != nullptr) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        const std::size_t line = origin.col + static_cast<std::size_t>(col + column);
        states[column] = S::Prepare(is_valid[column] ? out.line_amaxes[line] : 0.0f, args.options);
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float block_amaxes[2];
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        float amax = 0.0f;
        if constexpr (kIsSquare<S>) {
          amax = std::bit_cast<float>(
              amaxes.square[(row + part * kBlock) / kBlockItems<S> * kBlocks<S> +
                            (col + column) / kBlockItems<S>]);
        } else {
#pragma unroll
          for (int i = 0; i < kBlock; ++i)
            amax = fmaxf(amax, fabsf(pair.Item(column, part * kBlock + i)));
        }
        block_amaxes[column] = amax;
      }
      if constexpr (!kIsSquare<S> && kBlockItems < S >> kStripRows) {
        static_assert(kBlockItems<S> == kTile);
#pragma unroll
        for (int column = 0; column < 2; ++column)
          atomicMax(&amaxes.column[col + column],
                    std::bit_cast<std::uint32_t>(block_amaxes[column]));
        __syncthreads();
#pragma unroll
        for (int column = 0; column < 2; ++column)
          block_amaxes[column] = std::bit_cast<float>(amaxes.column[col + column]);
      }
      bool chosen = false;
      if constexpr (FourOverSixScheme<S>) {
        if (UsesFourOverSix<S>(states[0])) {
          ChooseOfColumns<S, T>(states, pair, block_amaxes, part * kBlock, valid_rows, is_valid,
                                scales[part]);
          chosen = true;
        }
      }
      if (!chosen) {
#pragma unroll
        for (int column = 0; column < 2; ++column)
          scales[part][column] = S::ScaleBlock(block_amaxes[column], states[column]);
      }
      const bool begins = kBlockItems<S> <= kStripRows || row == 0;
      if (begins && part * kBlock < valid_rows) {
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          if (is_valid[column])
            StoreScale<S>(out, origin.col + static_cast<std::size_t>(col + column),
                          origin.row + static_cast<std::size_t>(row + part * kBlock),
                          scales[part][column].scale_inv);
        }
      }
    }
  }

  __syncthreads();  // the tile's memory now takes codes
  if constexpr (kTransposed) {
    constexpr int kPieces = kTile * kBits<F> / 128;  // of 16 bytes, of a line of the tile
    constexpr int kOwn = kStripRows * kBits<F> / 128;
    auto* pieces = reinterpret_cast<uint4*>(tile);
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      std::uint32_t codes[kWords];
      bool done = false;
      if constexpr (S::kOptions.Has(Option::kStochasticRounding)) {
        if (args.stochastic) {
          const std::size_t runs = CeilDiv(args.in.shape.rows, kRandomRun);
          const std::size_t line = origin.col + static_cast<std::size_t>(col + column);
          const RandomState random_state = RandomOf(args);
#pragma unroll
          for (int part = 0; part < kStripRows / static_cast<int>(kRandomRun); ++part) {
            const std::size_t run = line * runs +
                                    (origin.row + static_cast<std::size_t>(row)) / kRandomRun +
                                    static_cast<std::size_t>(part);
#pragma unroll
            for (int w = 0; w < 2; ++w) {
              float scaled[kPerWord];
#pragma unroll
              for (int i = 0; i < kPerWord; ++i) {
                const int item = part * static_cast<int>(kRandomRun) + w * kPerWord + i;
                scaled[i] = pair.Item(column, item) * scales[item / kBlock][column].scale;
              }
              codes[part * 2 + w] =
                  StochasticWord(scaled, random_state, kColumnwiseRuns + run, w == 1);
            }
          }
          done = true;
        }
      }
      if (!done) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          codes[w] = EncodeWord<F>([&](int i) {
            const int item = w * kPerWord + i;
            return pair.Item(column, item) * scales[item / kBlock][column].scale;
          });
        }
      }
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        pieces[PieceAt<kPieces>(col + column, row / kStripRows * kOwn + i)] =
            make_uint4(codes[i * 4], codes[i * 4 + 1], codes[i * 4 + 2], codes[i * 4 + 3]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile * kPieces / kThreads; ++i) {
      const int piece = i * kThreads + static_cast<int>(threadIdx.x);
      const int line = piece / kPieces, of_line = piece % kPieces;
      const std::size_t first = origin.row + static_cast<std::size_t>(of_line * 128 / kBits<F>);
      if (origin.col + static_cast<std::size_t>(line) >= args.in.shape.cols ||
          first >= args.in.shape.rows)
        continue;
      const uint4 four = pieces[PieceAt<kPieces>(line, of_line)];
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
      std::byte* to = out.codes + (origin.col + static_cast<std::size_t>(line)) * out.code_stride +
                      first * kBits<F> / 8;
      StoreBytes<16>(to, words, (args.in.shape.rows - first) * kBits<F> / 8,
                     args.columnwise_is_aligned);
    }
  } else {
    static_assert(kTransposed || kBits<F> == 8);
#pragma unroll
    for (int i = 0; i < kStripRows; ++i) {
      const std::uint32_t codes = EncodePair<F>(pair.Item(0, i) * scales[i / kBlock][0].scale,
                                                pair.Item(1, i) * scales[i / kBlock][1].scale);
      *reinterpret_cast<std::uint16_t*>(tile + (row + i) * kTile + col) =
          static_cast<std::uint16_t>(codes);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile * kTile / 16 / kThreads; ++i) {
      const int piece = i * kThreads + static_cast<int>(threadIdx.x);
      const std::size_t r = origin.row + static_cast<std::size_t>(piece / (kTile / 16));
      const std::size_t c = origin.col + static_cast<std::size_t>(piece % (kTile / 16) * 16);
      if (r >= args.in.shape.rows || c >= args.in.shape.cols) continue;
      const uint4 four = reinterpret_cast<const uint4*>(tile)[piece];
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
      StoreBytes<16>(out.codes + r * out.code_stride + c, words, args.in.shape.cols - c,
                     args.columnwise_is_aligned);
    }
  }
}

/// Returns the scale of the block of a row that a chunk belongs to, and stores it.
template <Scheme S, class T>
__device__ __forceinline__ float RowScale(const QuantizeArguments& args,
                                          const typename S::TensorState& tensor_state,
                                          const Chunk<T>& chunk, float amax, std::size_t row,
                                          std::size_t col, int valid, int pass,
                                          const SharedErrors* errors) {
  if constexpr (WholeTensorScheme<S>) {
    return tensor_state.scale;
  } else {
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
}

/// Blocks that a multiprocessor has registers for, so that some load while others compute.
template <class T, bool kColumnwise>
inline constexpr int kBlocksOfMultiprocessor = kColumnwise ? (kItemSize<T> == 4 ? 2 : 3) : 4;

template <Scheme S, class T, bool kRowwise, bool kColumnwise>
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor<T, kColumnwise>)
    QuantizeTiles(const QuantizeArguments args) {
  if (Skips(args.noop)) return;
  __shared__ SharedAmaxes<S> amaxes;
  std::byte* tile = DynamicShared();
  const TileOrigin origin = Origin(args.in.shape);
  const int first_row = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk_col = static_cast<int>(threadIdx.x) % kChunks * kItems;
  const std::size_t col = origin.col + static_cast<std::size_t>(chunk_col);
  const MatrixShape shape = args.in.shape;
  const int items = static_cast<int>(col >= shape.cols           ? 0
                                     : shape.cols - col < kItems ? shape.cols - col
                                                                 : kItems);
  // Positions of a pass's row and chunk: in the tensor, in the tile, and of its square block.
  const auto row_of = [&](int pass) {
    return origin.row + static_cast<std::size_t>(pass * kRowsOfPass + first_row);
  };
  const auto valid_of = [&](int pass) { return row_of(pass) < shape.rows ? items : 0; };
  const auto chunk_at = [&](int pass) {
    return reinterpret_cast<uint4*>(
        tile + static_cast<std::size_t>((pass * kRowsOfPass + first_row) * kTile + chunk_col) *
                   kItemSize<T>);
  };
  const auto square_of = [&](int pass) -> unsigned& {
    return amaxes.square[(pass * kRowsOfPass + first_row) / kBlockItems<S> * kBlocks<S> +
                         chunk_col / kBlockItems<S>];
  };

  if constexpr (kIsSquare<S> || (kColumnwise && kBlockItems < S >> kStripRows)) {
    for (int i = static_cast<int>(threadIdx.x); i < kBlocks<S> * kBlocks<S>; i += kThreads)
      amaxes.square[i] = 0;
    if (threadIdx.x < kTile) amaxes.column[threadIdx.x] = 0;
    __syncthreads();
  }

  [[maybe_unused]] typename S::TensorState state{};
  if constexpr (kRowwise) state = StateOf<S>(args, args.rowwise);
  [[maybe_unused]] float tensor_amax = 0.0f;
#pragma unroll 1
  for (int first = 0; first < kPasses; first += kPassesAtOnce) {
    Chunk<T> chunks[kPassesAtOnce];
#pragma unroll
    for (int i = 0; i < kPassesAtOnce; ++i) {
      if (valid_of(first + i) > 0) {
        chunks[i].Load(args.in.Row(row_of(first + i)), col, shape.cols, args.in.is_aligned);
      } else {
        chunks[i].Clear();
      }
    }
#pragma unroll
    for (int i = 0; i < kPassesAtOnce; ++i) {
      const int pass = first + i;
      if constexpr (kColumnwise || kIsSquare<S>) chunks[i].Store(chunk_at(pass));
      float amax = 0.0f;
      if constexpr (WholeTensorScheme<S>) {
        if (args.amax_bits != nullptr) tensor_amax = fmaxf(tensor_amax, chunks[i].Amax());
      } else if constexpr (kIsSquare<S> || kRowwise) {
        amax = AmaxOfRowBlock<S>(chunks[i].Amax());
      }
      if constexpr (kIsSquare<S>) {
        if (chunk_col % kBlockItems<S> == 0)
          atomicMax(&square_of(pass), std::bit_cast<std::uint32_t>(amax));
      } else if constexpr (kRowwise) {
        const int valid = valid_of(pass);
        const float scale =
            RowScale<S, T>(args, state, chunks[i], amax, row_of(pass), col, valid, pass, nullptr);
        if (valid > 0) EncodeChunk<S, T>(args, chunks[i], scale, row_of(pass), col, valid);
      }
    }
  }
  if constexpr (kColumnwise || kIsSquare<S>) __syncthreads();

  if constexpr (kIsSquare<S> && kRowwise) {
    [[maybe_unused]] SharedErrors* errors = nullptr;
    if constexpr (FourOverSixScheme<S>) {
      if (UsesFourOverSix<S>(state)) {
        errors = reinterpret_cast<SharedErrors*>(tile + TileMemory<S, T>::kBytes);
#pragma unroll 1
        for (int pass = 0; pass < kPasses; ++pass) {
          Chunk<T> chunk;
          chunk.Fetch(chunk_at(pass));
          StoreRowErrors<S, T>(state, chunk, std::bit_cast<float>(square_of(pass)), valid_of(pass),
                               pass, *errors);
        }
        __syncthreads();
      }
    }
#pragma unroll 2
    for (int pass = 0; pass < kPasses; ++pass) {
      Chunk<T> chunk;
      chunk.Fetch(chunk_at(pass));
      const int valid = valid_of(pass);
      const float scale = RowScale<S, T>(args, state, chunk, std::bit_cast<float>(square_of(pass)),
                                         row_of(pass), col, valid, pass, errors);
      if (valid > 0) EncodeChunk<S, T>(args, chunk, scale, row_of(pass), col, valid);
    }
  }
  if constexpr (WholeTensorScheme<S>) {
    if (args.amax_bits != nullptr) RaiseByBlock(args.amax_bits, tensor_amax);
  }
  if constexpr (kColumnwise) QuantizeColumns<S, T>(args, origin, tile, amaxes);
}

bool IsAligned(const DirectionMemory<std::byte>& out, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(out.codes) | out.code_stride) % bytes == 0;
}

template <Scheme S, class T, bool kRowwise, bool kColumnwise>
void LaunchTiles(const QuantizeArguments& args, Stream stream) {
  std::size_t bytes = kColumnwise || kIsSquare<S> ? TileMemory<S, T>::kBytes : 0;
  if constexpr (FourOverSixScheme<S> && kIsSquare<S>) bytes += sizeof(SharedErrors);
  Launch(&QuantizeTiles<S, T, kRowwise, kColumnwise>, GridOf(args.in.shape), dim3(kThreads), bytes,
         stream, args);
}

template <Scheme S, class T>
void QuantizeAs(const QuantizeCall& call) {
  constexpr std::size_t kRowBytes =
      static_cast<std::size_t>(kItems * kBits<typename S::Element> / 8);
  QuantizeArguments args{call.in,
                         call.rowwise,
                         call.columnwise,
                         IsAligned(call.rowwise, kRowBytes),
                         IsAligned(call.columnwise, 16),
                         call.options,
                         call.tensor_scale,
                         call.amax_bits,
                         call.stochastic,
                         call.random,
                         call.random_at,
                         call.transforms,
                         call.sign_mask,
                         call.noop};
  const bool rowwise = call.rowwise.codes != nullptr, columnwise = call.columnwise.codes != nullptr;
  if (!columnwise) return LaunchTiles<S, T, true, false>(args, call.stream);
  if (!rowwise) return LaunchTiles<S, T, false, true>(args, call.stream);
  LaunchTiles<S, T, true, true>(args, call.stream);
}

template <Scheme S>
void Quantize(const QuantizeCall& call) {
  WithType(call.dtype, [&]<class T>() { QuantizeAs<S, T>(call); });
}

// Numbers of the tensor.

template <Scheme S>
__global__ void StoreNumbersKernel(const TensorNumbers call) {
  if (Skips(call.noop)) return;
  const float amax = call.rowwise_amax.Get();
  if (call.rowwise_amax_out != nullptr) StoreFloat(call.rowwise_amax_out, amax);
  if (call.columnwise_amax_out != nullptr)
    StoreFloat(call.columnwise_amax_out, call.columnwise_amax.Get());
  if constexpr (WholeTensorScheme<S>) {
    ScaleOptions options = call.options;
    options.scale = call.scale.Get();
    const BlockScale scale = S::ScaleBlock(amax, S::Prepare(amax, options));
    const float scale_inv = std::bit_cast<float>(scale.scale_inv);
    if (call.scale_out != nullptr) StoreFloat(call.scale_out, scale.scale);
    if (call.rowwise_scale_inv_out != nullptr) StoreFloat(call.rowwise_scale_inv_out, scale_inv);
    if (call.columnwise_scale_inv_out != nullptr)
      StoreFloat(call.columnwise_scale_inv_out, scale_inv);
    if (call.tensor_scale != nullptr) *call.tensor_scale = scale.scale;
  }
}

template <Scheme S>
void StoreNumbers(const TensorNumbers& call) {
  Launch(&StoreNumbersKernel<S>, dim3(1), dim3(1), 0, call.stream, call);
}

}  // namespace

template <std::size_t kIndex>
const SchemeKernels& KernelsOf() {
  using S = typename std::tuple_element_t<kIndex, std::remove_const_t<decltype(kEntries)>>::Type;
  static constexpr SchemeKernels kKernels{&StoreNumbers<S>, &Quantize<S>, &Dequantize<S>};
  return kKernels;
}

template const SchemeKernels& KernelsOf<NF_CUDA_SCHEME>();

}  // namespace narrowfloat::cuda
