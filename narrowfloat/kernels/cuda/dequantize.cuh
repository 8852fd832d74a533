// SPDX-License-Identifier: Apache-2.0
// Dequantizes for one scheme.
#pragma once

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/tile.cuh"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cuda {
namespace {

struct DequantizeArguments {
  DirectionMemory<const std::byte> in;
  bool codes_are_aligned;
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

/// Returns what decoded codes of a line are multiplied by at a position.
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

template <class T>
__device__ __forceinline__ void StoreItems(const DequantizeArguments& args, std::size_t row,
                                           std::size_t col, const float (&values)[kItems],
                                           int valid) {
  std::uint32_t words[Chunk<T>::kWords];
#pragma unroll
  for (int i = 0; i < Chunk<T>::kWords; ++i) {
    if constexpr (kItemSize<T> == 4) {
      words[i] = std::bit_cast<std::uint32_t>(CanonicalNan(values[i]));
    } else {
      words[i] = Narrow<T>(values[i * 2]) | Narrow<T>(values[i * 2 + 1]) << 16;
    }
  }
  StoreBytes<Chunk<T>::kWords * 4>(args.out.Row(row) + col * kItemSize<T>, words,
                                   static_cast<std::size_t>(valid) * kItemSize<T>,
                                   args.out.is_aligned);
}

/// Decodes codes that lie as the output does.
template <Scheme S, class T, bool kRowwise>
__global__ void __launch_bounds__(kThreads, 4) DecodeRows(const DequantizeArguments args) {
  using F = typename S::Element;
  constexpr int kBytes = kItems * kBits<F> / 8;
  if (Skips(args.noop)) return;
  const typename S::TensorState state = DecodingState<S>(args);
  const TileOrigin origin = Origin(args.out.shape);
  const MatrixShape shape = args.out.shape;
  const std::size_t col = origin.col + threadIdx.x % kChunks * kItems;
  if (col >= shape.cols) return;
  const int valid = static_cast<int>(shape.cols - col < kItems ? shape.cols - col : kItems);
#pragma unroll 1
  for (int first = 0; first < kPasses; first += kPassesAtOnce) {
    const auto row_of = [&](int i) {
      return origin.row + static_cast<std::size_t>((first + i) * kRowsOfPass) +
             threadIdx.x / kChunks;
    };
    std::uint32_t codes[kPassesAtOnce][kBytes / 4];
#pragma unroll
    for (int i = 0; i < kPassesAtOnce; ++i) {
      if (row_of(i) >= shape.rows) continue;
      LoadBytes<kBytes>(args.in.codes + row_of(i) * args.in.code_stride + CodeBytes(kBits<F>, col),
                        CodeBytes(kBits<F>, static_cast<std::size_t>(valid)),
                        args.codes_are_aligned, codes[i]);
    }
#pragma unroll
    for (int i = 0; i < kPassesAtOnce; ++i) {
      const std::size_t row = row_of(i);
      if (row >= shape.rows) continue;
      float values[kItems];
      float scale = 1.0f;
      if constexpr (kRowwise || WholeTensorScheme<S>)
        scale = DecodingScale<S>(args, state, row, col);
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        const std::uint32_t code =
            codes[i][k * kBits<F> / 32] >> (k * kBits<F> % 32) & kCodeMask<F>;
        if constexpr (!kRowwise && !WholeTensorScheme<S>) {
          scale = k < valid ? DecodingScale<S>(args, state, col + static_cast<std::size_t>(k), row)
                            : 0.0f;
        }
        values[k] = DecodeItem<F>(code) * scale;
      }
      StoreItems<T>(args, row, col, values, valid);
    }
  }
}

/// Decodes transposed codes: collects those of a tile in shared memory, 16 bytes of a line at a
/// time.
template <Scheme S, class T>
__global__ void __launch_bounds__(kThreads, 3) DecodeTransposed(const DequantizeArguments args) {
  using F = typename S::Element;
  constexpr int kPieces = kTile * kBits<F> / 128;
  if (Skips(args.noop)) return;
  __shared__ uint4 pieces[kTile * kPieces];
  const typename S::TensorState state = DecodingState<S>(args);
  const TileOrigin origin = Origin(args.out.shape);
  const MatrixShape shape = args.out.shape;
#pragma unroll
  for (int i = 0; i < kTile * kPieces / kThreads; ++i) {
    const int piece = i * kThreads + static_cast<int>(threadIdx.x);
    const int line = piece / kPieces, of_line = piece % kPieces;
    const std::size_t first = origin.row + static_cast<std::size_t>(of_line * 128 / kBits<F>);
    uint4 four = make_uint4(0, 0, 0, 0);
    if (origin.col + static_cast<std::size_t>(line) < shape.cols && first < shape.rows) {
      const std::byte* from = args.in.codes +
                              (origin.col + static_cast<std::size_t>(line)) * args.in.code_stride +
                              first * kBits<F> / 8;
      std::uint32_t words[4];
      LoadBytes<16>(from, CodeBytes(kBits<F>, shape.rows - first), args.codes_are_aligned, words);
      four = make_uint4(words[0], words[1], words[2], words[3]);
    }
    pieces[PieceAt<kPieces>(line, of_line)] = four;
  }
  __syncthreads();
  // A thread decodes 8 columns of 4 adjacent rows of 8-bit codes, or of 8 of 4-bit ones, a word of
  // each column at a time.
  constexpr int kRows = 32 / kBits<F>;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const std::size_t col = origin.col + static_cast<std::size_t>(chunk * kItems);
  if (col >= shape.cols) return;
  const int valid = static_cast<int>(shape.cols - col < kItems ? shape.cols - col : kItems);
  for (int group = static_cast<int>(threadIdx.x) / kChunks; group < kTile / kRows;
       group += kThreads / kChunks) {
    const std::size_t row = origin.row + static_cast<std::size_t>(group * kRows);
    if (row >= shape.rows) break;
    std::uint32_t words[kItems];
    float scales[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int line = chunk * kItems + i, byte = group * 4;
      words[i] = reinterpret_cast<const std::uint32_t*>(
          pieces + PieceAt<kPieces>(line, byte / 16))[byte % 16 / 4];
      scales[i] =
          i < valid ? DecodingScale<S>(args, state, col + static_cast<std::size_t>(i), row) : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + static_cast<std::size_t>(r) >= shape.rows) break;
      float values[kItems];
#pragma unroll
      for (int i = 0; i < kItems; ++i)
        values[i] = DecodeItem<F>(words[i] >> (r * kBits<F>)&kCodeMask<F>) * scales[i];
      StoreItems<T>(args, row + static_cast<std::size_t>(r), col, values, valid);
    }
  }
}

template <Scheme S, class T>
void DequantizeAs(const DequantizeCall& call) {
  const bool rowwise = call.direction == Direction::kRowwise;
  const bool transposed = !rowwise && S::kLayout.columnwise_transposed;
  const std::size_t unit =
      transposed ? 16 : static_cast<std::size_t>(kItems * kBits<typename S::Element> / 8);
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(call.in.codes) | call.in.code_stride) % unit == 0;
  const DequantizeArguments args{call.in, aligned, call.out, call.options, call.noop};
  const auto launch = [&](auto* kernel) {
    Launch(kernel, GridOf(call.out.shape), dim3(kThreads), 0, call.stream, args);
  };
  if (rowwise) return launch(&DecodeRows<S, T, true>);
  if constexpr (S::kLayout.columnwise_transposed) {
    launch(&DecodeTransposed<S, T>);
  } else {
    launch(&DecodeRows<S, T, false>);
  }
}

template <Scheme S>
void Dequantize(const DequantizeCall& call) {
  WithType(call.dtype, [&]<class T>() { DequantizeAs<S, T>(call); });
}

}  // namespace
}  // namespace narrowfloat::cuda
