// SPDX-License-Identifier: Apache-2.0
// Dequantizes for one scheme.
#pragma once

#include <cstring>

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/tile.cuh"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cuda {
namespace {

// A thread decodes one square of 8x8 items. It loads all codes and scales before it uses the first
// one. A square is decoded item by item if a part of it is outside the matrix, if its memory is not
// aligned, or if 16-bit results may hold NaN.

constexpr int kRowTileRows = kThreads / 32 * kItems, kRowTileCols = 32 * kItems;  // for DecodeRows

struct DequantizeArguments {
  DirectionMemory<const std::byte> in;
  bool codes_are_aligned;
  bool is_plain;  // codes, scales and output are aligned, and the output's rows have one stride
  Rows<std::byte> out;
  ScaleOptions options;
  const float* noop;
};

template <Scheme S>
__device__ __forceinline__ typename S::TensorState DecodingState(const DequantizeArguments& args) {
  float amax = args.in.amax.value;
  if (args.in.amax.at != nullptr)
    amax = LoadFloat(reinterpret_cast<const std::byte*>(args.in.amax.at));
  return S::Prepare(amax, args.options);
}

/// Returns the factor of a decoded code at a position of a line.
template <Scheme S>
__device__ __forceinline__ float DecodingScale(const DequantizeArguments& args,
                                               const typename S::TensorState& state,
                                               std::size_t line, std::size_t pos) {
  const std::size_t item = args.in.strides.LineOffset(ScaleLine<S>(line)) +
                           args.in.strides.BlockOffset(ScaleBlockIndex<S>(pos));
  std::uint32_t scale_inv;
  if constexpr (kScaleBytes<S> == 4) {
    scale_inv = std::bit_cast<std::uint32_t>(LoadFloat(args.in.scale_inv + item * 4));
  } else {
    scale_inv = static_cast<std::uint32_t>(args.in.scale_inv[item]);
  }
  if (args.in.line_amaxes != nullptr) {
    const auto* amaxes = reinterpret_cast<const std::byte*>(args.in.line_amaxes);
    return S::DecodeScale(scale_inv, S::Prepare(LoadFloat(amaxes + line * 4), args.options));
  }
  return S::DecodeScale(scale_inv, state);
}

/// Decodes a square item by item. code_at(r, k) returns the code at row r and column k of it.
template <Scheme S, class T, bool kRowwise, class CodeAt>
__device__ __forceinline__ void DecodeByItems(const DequantizeArguments& args,
                                              const typename S::TensorState& state, std::size_t row,
                                              std::size_t col, const CodeAt& code_at) {
  const MatrixShape shape = args.out.shape;
  const int rows = static_cast<int>(shape.rows - row < kItems ? shape.rows - row : kItems);
  const int cols = static_cast<int>(shape.cols - col < kItems ? shape.cols - col : kItems);
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    const std::size_t of_row = row + static_cast<std::size_t>(r);
    std::uint32_t words[Chunk<T>::kWords] = {};
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k >= cols) break;
      const std::size_t of_col = col + static_cast<std::size_t>(k);
      const float value =
          DecodeByProduct<typename S::Element>(code_at(r, k)) *
          DecodingScale<S>(args, state, kRowwise ? of_row : of_col, kRowwise ? of_col : of_row);
      if constexpr (kItemSize<T> == 4) {
        words[k] = std::bit_cast<std::uint32_t>(CanonicalNan(value));
      } else {
        words[k / 2] |= Narrow<T>(value) << (k % 2 * 16);
      }
    }
    StoreBytes<Chunk<T>::kBytes>(args.out.Row(of_row) + col * kItemSize<T>, words,
                                 static_cast<std::size_t>(cols) * kItemSize<T>,
                                 args.out.is_aligned);
  }
}

/// The stored scales of 8 adjacent lines for one block position.
template <Scheme S>
struct LineScales {
  static constexpr bool kIsOne = S::kLayout.lines_per_scale % kItems == 0;
  static_assert(kIsOne || S::kLayout.lines_per_scale == 1);
  std::uint32_t scale_inv[kIsOne ? 1 : kItems];

  /// Loads the scales. Requires: args.is_plain; line is a multiple of 8; 8 lines are in the matrix.
  __device__ __forceinline__ void Load(const DequantizeArguments& args, std::size_t line,
                                       std::size_t pos) {
    // The 8 lines are in one run of lines at the distance `strides.line`.
    const std::byte* at =
        args.in.scale_inv + (args.in.strides.LineOffset(ScaleLine<S>(line)) +
                             args.in.strides.BlockOffset(ScaleBlockIndex<S>(pos))) *
                                kScaleBytes<S>;
#pragma unroll
    for (int i = 0; i < (kIsOne ? 1 : kItems); ++i) {
      if constexpr (kScaleBytes<S> == 4) {
        scale_inv[i] = __ldg(reinterpret_cast<const unsigned*>(at));
      } else {
        scale_inv[i] = __ldg(reinterpret_cast<const unsigned char*>(at));
      }
      at += args.in.strides.line * kScaleBytes<S>;
    }
  }

  /// Sets the factors of the decoded codes of each line.
  __device__ __forceinline__ void Decode(const DequantizeArguments& args,
                                         const typename S::TensorState& state, std::size_t line,
                                         float (&scales)[kItems]) const {
    if (S::kOptions.Has(Option::kRowScaled) && args.in.line_amaxes != nullptr) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        scales[i] = S::DecodeScale(scale_inv[kIsOne ? 0 : i],
                                   S::Prepare(__ldg(args.in.line_amaxes + line + i), args.options));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kItems; ++i)
        scales[i] = kIsOne && i > 0 ? scales[0] : S::DecodeScale(scale_inv[i], state);
    }
  }
};

/// Rounds 8 items of a row and stores them at an aligned address. Returns true if it may have
/// stored a NaN other than the library's.
template <class T>
__device__ __forceinline__ bool StoreRow(std::byte* to, const float (&values)[kItems]) {
  Chunk<T> chunk;
#pragma unroll
  for (int i = 0; i < Chunk<T>::kWords; ++i) {
    if constexpr (kItemSize<T> == 4) {
      chunk.words[i] = std::bit_cast<std::uint32_t>(CanonicalNan(values[i]));
    } else {
      chunk.words[i] = NarrowPair<T>(values[i * 2], values[i * 2 + 1]);
    }
  }
  chunk.Store(reinterpret_cast<uint4*>(to));
  if constexpr (kItemSize<T> == 4) {
    return false;
  } else {
    return MayHoldNan<T>(chunk.words);
  }
}

/// Returns true if a square is completely in the matrix and in aligned memory.
__device__ __forceinline__ bool IsPlain(const DequantizeArguments& args, std::size_t row,
                                        std::size_t col) {
  return args.is_plain && row + kItems <= args.out.shape.rows &&
         col + kItems <= args.out.shape.cols;
}

/// Decodes codes with the output's orientation. A warp decodes 8 rows of 256 columns.
template <Scheme S, class T, bool kRowwise>
__global__ void __launch_bounds__(kThreads, 4)
    DecodeRows(const __grid_constant__ DequantizeArguments args) {
  using F = typename S::Element;
  using Pairs = CodePairs<F>;
  constexpr int kWords = kItems * kBits<F> / 32, kPerWord = 32 / kBits<F>;
  if (Skips(args.noop)) return;
  const MatrixShape shape = args.out.shape;
  const auto tiles = static_cast<unsigned>(CeilDiv(shape.cols, kRowTileCols));
  const std::size_t row =
      std::size_t{blockIdx.x / tiles} * kRowTileRows + threadIdx.x / 32 * kItems;
  const std::size_t col =
      std::size_t{blockIdx.x % tiles} * kRowTileCols + threadIdx.x % 32 * kItems;
  if (row >= shape.rows || col >= shape.cols) return;
  const typename S::TensorState state = DecodingState<S>(args);
  const std::byte* codes = args.in.codes + row * args.in.code_stride + CodeBytes(kBits<F>, col);
  if (IsPlain(args, row, col)) {
    std::uint32_t words[kItems][kWords];
#pragma unroll
    for (int r = 0; r < kItems; ++r)
      LoadBytes<kWords * 4>(codes + static_cast<std::size_t>(r) * args.in.code_stride, kWords * 4,
                            true, words[r]);
    LineScales<S> line_scales;
    line_scales.Load(args, kRowwise ? row : col, kRowwise ? col : row);
    float scales[kItems];
    line_scales.Decode(args, state, kRowwise ? row : col, scales);
    std::byte* to =
        args.out.data + static_cast<std::int64_t>(row) * args.out.strides[0] + col * kItemSize<T>;
    bool repeats = false;
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
      float values[kItems];
#pragma unroll
      for (int p = 0; p < kItems / 2; ++p) {
        const int w = p / Pairs::kCount, pair = p % Pairs::kCount;
        DecodePair<F>(words[r][w], pair, values[w * kPerWord + Pairs::First(pair)],
                      values[w * kPerWord + Pairs::Second(pair)]);
      }
#pragma unroll
      for (int k = 0; k < kItems; ++k) values[k] *= scales[kRowwise ? r : k];
      repeats |= StoreRow<T>(to + r * args.out.strides[0], values);
    }
    if (!repeats) return;
  }
  DecodeByItems<S, T, kRowwise>(args, state, row, col, [&](int r, int k) {
    const auto byte =
        static_cast<std::uint32_t>(codes[static_cast<std::size_t>(r) * args.in.code_stride +
                                         static_cast<std::size_t>(k * kBits<F> / 8)]);
    return byte >> (k * kBits<F> % 8) & kCodeMask<F>;
  });
}

/// Returns a piece's position in shared memory: 16 bytes of a line of transposed codes. Pieces that
/// threads store together, and the same one of 8 lines 8 apart, are in different banks.
template <int kPieces>
__device__ __forceinline__ int TransposedPieceAt(int line, int piece) {
  return (line * kPieces + piece) ^ (line / 8 & 7);
}

/// Decodes transposed codes. Collects the codes of a tile in shared memory, 16 bytes of a line at a
/// time; then each warp decodes 32 rows of 64 columns.
template <Scheme S, class T>
__global__ void __launch_bounds__(kThreads, 4)
    DecodeTransposed(const __grid_constant__ DequantizeArguments args) {
  using F = typename S::Element;
  using Pairs = CodePairs<F>;
  constexpr int kPieces = kTile * kBits<F> / 128, kLoads = kTile * kPieces / kThreads;
  constexpr int kWords = kItems * kBits<F> / 32, kPerWord = 32 / kBits<F>;
  if (Skips(args.noop)) return;
  __shared__ uint4 pieces[kTile * kPieces];
  const TileOrigin origin = Origin();
  const MatrixShape shape = args.out.shape;
  if (origin.row >= shape.rows) return;
  // The pieces of a thread are kThreads / kPieces lines apart.
  const int of_line = static_cast<int>(threadIdx.x) % kPieces;
  const std::size_t first_line = origin.col + threadIdx.x / kPieces;
  const std::size_t first_row = origin.row + static_cast<std::size_t>(of_line * 128 / kBits<F>);
  const std::byte* from =
      args.in.codes + first_line * args.in.code_stride + CodeBytes(kBits<F>, first_row);
  const std::size_t step = kThreads / kPieces * args.in.code_stride;
  std::uint32_t loaded[kLoads][4] = {};
  if (args.codes_are_aligned && origin.row + kTile <= shape.rows &&
      origin.col + kTile <= shape.cols) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      LoadBytes<16>(from + static_cast<std::size_t>(i) * step, 16, true, loaded[i]);
  } else if (first_row < shape.rows) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (first_line + static_cast<std::size_t>(i * (kThreads / kPieces)) >= shape.cols) break;
      LoadBytes<16>(from + static_cast<std::size_t>(i) * step,
                    CodeBytes(kBits<F>, shape.rows - first_row), args.codes_are_aligned, loaded[i]);
    }
  }
  // The square of this thread, and its scales, which are loaded before the barrier too.
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tile_row = (warp / 2 * 4 + lane / 8) * kItems;
  const int tile_col = (warp % 2 * 8 + lane % 8) * kItems;
  const std::size_t row = origin.row + static_cast<std::size_t>(tile_row);
  const std::size_t col = origin.col + static_cast<std::size_t>(tile_col);
  const bool is_plain = IsPlain(args, row, col);
  const typename S::TensorState state = DecodingState<S>(args);
  LineScales<S> line_scales{};
  if (is_plain) line_scales.Load(args, col, row);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const int line = i * (kThreads / kPieces) + static_cast<int>(threadIdx.x) / kPieces;
    pieces[TransposedPieceAt<kPieces>(line, of_line)] =
        make_uint4(loaded[i][0], loaded[i][1], loaded[i][2], loaded[i][3]);
  }
  __syncthreads();
  if (row >= shape.rows || col >= shape.cols) return;
  // Returns the words of the square's codes of a column.
  const auto words_of = [&](int k) {
    constexpr int kBytes = kWords * 4;
    const int byte = tile_row / kItems * kBytes;
    const uint4* piece = pieces + TransposedPieceAt<kPieces>(tile_col + k, byte / 16);
    return reinterpret_cast<const std::uint32_t*>(piece) + byte % 16 / 4;
  };
  if (is_plain) {
    std::uint32_t words[kItems][kWords];
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      std::memcpy(words[k], __builtin_assume_aligned(words_of(k), kWords * 4), kWords * 4);
    float scales[kItems];
    line_scales.Decode(args, state, col, scales);
    std::byte* to =
        args.out.data + static_cast<std::int64_t>(row) * args.out.strides[0] + col * kItemSize<T>;
    bool repeats = false;
#pragma unroll
    for (int p = 0; p < kItems / 2; ++p) {
      const int w = p / Pairs::kCount, pair = p % Pairs::kCount;
      float first[kItems], second[kItems];  // rows
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        DecodePair<F>(words[k][w], pair, first[k], second[k]);
        first[k] *= scales[k];
        second[k] *= scales[k];
      }
      repeats |= StoreRow<T>(to + (w * kPerWord + Pairs::First(pair)) * args.out.strides[0], first);
      repeats |=
          StoreRow<T>(to + (w * kPerWord + Pairs::Second(pair)) * args.out.strides[0], second);
    }
    if (!repeats) return;
  }
  DecodeByItems<S, T, false>(args, state, row, col, [&](int r, int k) {
    return words_of(k)[r / kPerWord] >> (r % kPerWord * kBits<F>)&kCodeMask<F>;
  });
}

template <Scheme S, class T>
void DequantizeAs(const DequantizeCall& call) {
  const bool rowwise = call.direction == Direction::kRowwise;
  const bool transposed = !rowwise && S::kLayout.columnwise_transposed;
  const std::size_t unit =
      transposed ? 16 : static_cast<std::size_t>(kItems * kBits<typename S::Element> / 8);
  const auto place = [](const void* data) { return reinterpret_cast<std::uintptr_t>(data); };
  const bool codes_are_aligned = (place(call.in.codes) | call.in.code_stride) % unit == 0;
  const bool is_plain = codes_are_aligned && place(call.in.scale_inv) % kScaleBytes<S> == 0 &&
                        place(call.in.line_amaxes) % alignof(float) == 0 && call.out.is_aligned &&
                        call.out.dims == 1;
  const DequantizeArguments args{call.in,  codes_are_aligned, is_plain,
                                 call.out, call.options,      call.noop};
  const MatrixShape shape = call.out.shape;
  const auto launch = [&](auto* kernel, dim3 grid) {
    Launch(kernel, grid, dim3(kThreads), 0, call.stream, args);
  };
  const dim3 row_tiles(
      static_cast<unsigned>(CeilDiv(shape.rows, kRowTileRows) * CeilDiv(shape.cols, kRowTileCols)));
  if (rowwise) return launch(&DecodeRows<S, T, true>, row_tiles);
  if constexpr (S::kLayout.columnwise_transposed) {
    launch(&DecodeTransposed<S, T>, GridOf(shape));
  } else {
    launch(&DecodeRows<S, T, false>, row_tiles);
  }
}

template <Scheme S>
void Dequantize(const DequantizeCall& call) {
  WithType(call.dtype, [&]<class T>() { DequantizeAs<S, T>(call); });
}

}  // namespace
}  // namespace narrowfloat::cuda
