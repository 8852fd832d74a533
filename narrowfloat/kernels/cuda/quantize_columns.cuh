// SPDX-License-Identifier: Apache-2.0
// Quantizes the columns of a tile that lies in shared memory.
#pragma once

#include <type_traits>

#include "narrowfloat/kernels/cuda/hadamard.cuh"
#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/quantize_rows.cuh"

namespace narrowfloat::cuda {
namespace {

/// Transforms the columns of a tile in shared memory, 16 rows at a time.
template <class T>
__device__ __forceinline__ void TransformTile(std::byte* tile, std::uint32_t sign_mask) {
  using Item = std::conditional_t<kItemSize<T> == 4, std::uint32_t, std::uint16_t>;
  constexpr int kGroup = static_cast<int>(kHadamardSize);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kTile / kGroup * kTile; i += kThreads) {
    Item* items = reinterpret_cast<Item*>(tile) + i / kTile * kGroup * kTile + i % kTile;
    float group[kHadamardSize];
    std::uint32_t out[kHadamardSize];
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      if constexpr (kItemSize<T> == 4) {
        group[k] = std::bit_cast<float>(items[k * kTile]);
      } else {
        group[k] = Widen<T>(items[k * kTile]);
      }
    }
    TransformGroup<T>(group, sign_mask, out);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) items[k * kTile] = static_cast<Item>(out[k]);
  }
}

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
  /// Finds the amaxes of both columns over kCount rows; NaN is ignored.
  template <int kCount>
  __device__ __forceinline__ void FindAmaxes(int first, float (&amaxes)[2]) const {
    if constexpr (kWordsOfRow == 1) {
      std::uint32_t largest = 0;
#pragma unroll
      for (int i = 0; i < kCount; ++i) largest = LargerMagnitudes<T>(largest, words[first + i]);
      amaxes[0] = Widen<T>(largest & 0xFFFFu);
      amaxes[1] = Widen<T>(largest >> 16);
    } else {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        amaxes[column] = 0.0f;
#pragma unroll
        for (int i = 0; i < kCount; ++i)
          amaxes[column] = fmaxf(amaxes[column], fabsf(Item(column, first + i)));
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
    static_assert(kBlockItems<S> == 16);
    const int left = valid_rows - first < 0 ? 0 : valid_rows - first;
    const int count = !is_valid[column] ? 0 : left < kBlockItems<S> ? left : kBlockItems<S>;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float sum = 0.0f;
#pragma unroll
      for (int half = 0; half < 16; half += 8) {
        const auto item = [&](int i) { return pair.Item(column, first + half + i); };
        sum = AddErrors<S>(states[column], EightFloats::Of(item), count - half, candidates[c], sum);
      }
      errors[column][c] = sum;
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

  BlockScale scales[kParts][2];
  const typename S::TensorState state = StateOf<S>(args, out);
  const auto state_of = [&](int column) {
    if (out.line_amaxes == nullptr) return state;
    const std::size_t line = origin.col + static_cast<std::size_t>(col + column);
    return S::Prepare(is_valid[column] ? out.line_amaxes[line] : 0.0f, args.options);
  };
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    float block_amaxes[2];
    if constexpr (kIsSquare<S>) {
#pragma unroll
      for (int column = 0; column < 2; ++column)
        block_amaxes[column] =
            std::bit_cast<float>(amaxes.square[(row + part * kBlock) / kBlockItems<S> * kBlocks<S> +
                                               (col + column) / kBlockItems<S>]);
    } else {
      pair.template FindAmaxes<kBlock>(part * kBlock, block_amaxes);
    }
    if constexpr (!kIsSquare<S> && kStripRows < kBlockItems<S>) {
      static_assert(kBlockItems<S> == kTile);
#pragma unroll
      for (int column = 0; column < 2; ++column)
        atomicMax(&amaxes.column[col + column], std::bit_cast<std::uint32_t>(block_amaxes[column]));
      __syncthreads();
#pragma unroll
      for (int column = 0; column < 2; ++column)
        block_amaxes[column] = std::bit_cast<float>(amaxes.column[col + column]);
    }
    bool chosen = false;
    if constexpr (FourOverSixScheme<S>) {
      if (UsesFourOverSix<S>(state)) {
        const typename S::TensorState states[2] = {state_of(0), state_of(1)};
        ChooseOfColumns<S, T>(states, pair, block_amaxes, part * kBlock, valid_rows, is_valid,
                              scales[part]);
        chosen = true;
      }
    }
    if (!chosen) {
#pragma unroll
      for (int column = 0; column < 2; ++column)
        scales[part][column] = S::ScaleBlock(block_amaxes[column], state_of(column));
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
              const auto scaled = [&](int i) {
                const int item = part * static_cast<int>(kRandomRun) + w * kPerWord + i;
                return pair.Item(column, item) * scales[item / kBlock][column].scale;
              };
              codes[part * 2 + w] = StochasticWord(EightFloats::Of(scaled), random_state,
                                                   kColumnwiseRuns + run, w == 1);
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

}  // namespace
}  // namespace narrowfloat::cuda
