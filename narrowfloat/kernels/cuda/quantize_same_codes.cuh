// SPDX-License-Identifier: Apache-2.0
// Quantizes by schemes with the same codes in rows and columns: one scale for the tensor, and
// square blocks.
#pragma once

#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/quantize_rows.cuh"
#include "narrowfloat/kernels/cuda/transpose.cuh"

namespace narrowfloat::cuda {
namespace {

/// True for schemes with the same 8-bit codes in both directions: these are computed once.
template <Scheme S>
inline constexpr bool kHasSameCodes = kBits<typename S::Element> == 8 &&
                                      (WholeTensorScheme<S> || kIsSquare<S>);

/// Stores the transposed codes of a tile from shared memory.
__device__ __forceinline__ void StoreTransposed(const QuantizeArguments& args,
                                                const TileOrigin& origin, const uint4* tile) {
  const CodeColumns columns = CollectColumns(tile, static_cast<int>(threadIdx.x));
  const std::size_t row = origin.row + static_cast<std::size_t>(columns.row);
  const MatrixShape shape = args.in.shape;
  if (row >= shape.rows) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::size_t col = origin.col + static_cast<std::size_t>(columns.col + i);
    if (col < shape.cols)
      StoreBytes<16>(args.columnwise.codes + col * args.columnwise.code_stride + row,
                     columns.words[i], shape.rows - row, args.columnwise_is_aligned);
  }
}

/// Stores the scales of a tile's square blocks, once for each of their columns.
template <Scheme S>
__device__ __forceinline__ void StoreColumnScales(const QuantizeArguments& args,
                                                  const typename S::TensorState& state,
                                                  const TileOrigin& origin,
                                                  const unsigned* amaxes) {
  const int col = static_cast<int>(threadIdx.x);
  if (col >= kTile || origin.col + static_cast<std::size_t>(col) >= args.in.shape.cols) return;
#pragma unroll
  for (int block = 0; block < kBlocks<S>; ++block) {
    const std::size_t row = origin.row + static_cast<std::size_t>(block * kBlockItems<S>);
    if (row >= args.in.shape.rows) break;
    const float amax = std::bit_cast<float>(amaxes[block * kBlocks<S> + col / kBlockItems<S>]);
    StoreScale<S>(args.columnwise, origin.col + static_cast<std::size_t>(col), row,
                  S::ScaleBlock(amax, state).scale_inv);
  }
}

/// Quantizes a tile of a scheme with the same codes in both directions.
template <Scheme S, class T, bool kRowwise, bool kColumnwise>
__global__ void __launch_bounds__(kThreads, !kIsSquare<S>       ? 4
                                            : kItemSize<T> == 4 ? 2
                                                                : 3)
    QuantizeSameCodes(const __grid_constant__ QuantizeArguments args) {
  using F = typename S::Element;
  constexpr bool kTransposes = kColumnwise && S::kLayout.columnwise_transposed;
  AwaitPrevious();
  if (Skips(args.noop)) return;
  static_assert(kTile == kCodeTile && kThreads == kCodeTileThreads);
  __shared__ uint4 tile[kTransposes ? kTile * kTile / 16 : 1];
  __shared__ unsigned amaxes[kBlocks<S> * kBlocks<S>];
  [[maybe_unused]] std::byte* items = DynamicShared();  // if columns are summed
  const Place<S> place(args.in.shape);
  if (place.origin.row >= args.in.shape.rows) return;
  constexpr int kPasses = Place<S>::kPasses, kPassesAtOnce = Place<S>::kPassesAtOnce,
                kRowsOfPass = Place<S>::kRowsOfPass;
  // Square blocks need the amax of all rows before the first one is encoded.
  constexpr int kHeld = kIsSquare<S> ? kPasses : kPassesAtOnce;
  const typename S::TensorState state = StateOf<S>(args, args.rowwise);
  [[maybe_unused]] float tensor_amax = 0.0f;
#pragma unroll 1
  for (int first = 0; first < kPasses; first += kHeld) {
    Chunk<T> chunks[kHeld];
    LoadChunks(args.in, place, IsPlain(args.in, place), first, chunks);
    if constexpr (kColumnwise) {
      if (args.strip_sums != nullptr) {
        // For the column sums, which add the rows in order.
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          const int item = ((first + i) * kRowsOfPass + place.row) * kTile + place.col;
          chunks[i].Store(
              reinterpret_cast<uint4*>(items + static_cast<std::size_t>(item) * kItemSize<T>));
        }
      }
    }
    [[maybe_unused]] const auto square_of = [&](int pass) -> unsigned& {
      return amaxes[place.template Square<kBlockItems<S>>(pass)];
    };
    if constexpr (kIsSquare<S>) {
      if (threadIdx.x < kBlocks<S> * kBlocks<S>) amaxes[threadIdx.x] = 0;
      __syncthreads();
      // Combines passes of the same blocks first, then threads.
      constexpr int kPassesOfBlock = kBlockItems<S> / kRowsOfPass;
#pragma unroll
      for (int i = 0; i < kHeld; i += kPassesOfBlock) {
        float amax = 0.0f;
#pragma unroll
        for (int k = 0; k < kPassesOfBlock; ++k) amax = fmaxf(amax, chunks[i + k].Amax());
        amax = AmaxOfRowBlock<S>(amax);
        if (place.col % kBlockItems<S> == 0)
          atomicMax(&square_of(i), std::bit_cast<std::uint32_t>(amax));
      }
      __syncthreads();
    }
    BlockScale scale{};
    if constexpr (WholeTensorScheme<S>) scale.scale = state.scale;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int pass = first + i, valid = place.Valid(pass);
      if constexpr (WholeTensorScheme<S>) {
        if (args.amax_bits != nullptr) tensor_amax = fmaxf(tensor_amax, chunks[i].Amax());
      } else {
        if (i * kRowsOfPass % kBlockItems<S> == 0)
          scale = S::ScaleBlock(std::bit_cast<float>(square_of(pass)), state);
        if (kRowwise && valid > 0 && place.col % kBlockItems<S> == 0)
          StoreScale<S>(args.rowwise, place.Row(pass), place.col_of_tensor, scale.scale_inv);
      }
      std::uint32_t codes[2];
#pragma unroll
      for (int w = 0; w < 2; ++w)
        codes[w] = EncodeWord<F>([&](int k) { return chunks[i].Item(w * 4 + k) * scale.scale; });
      const auto store = [&](const DirectionMemory<std::byte>& out, bool aligned) {
        if (valid > 0)
          StoreBytes<8>(out.codes + place.Row(pass) * out.code_stride + place.col_of_tensor, codes,
                        static_cast<std::size_t>(valid), aligned);
      };
      if constexpr (kRowwise) store(args.rowwise, args.rowwise_is_aligned);
      if constexpr (kTransposes) {
        uint4* piece = tile + CodePieceAt(pass * kRowsOfPass + place.row, place.col / 16);
        reinterpret_cast<uint2*>(piece)[place.col % 16 / 8] = make_uint2(codes[0], codes[1]);
      } else if constexpr (kColumnwise) {
        store(args.columnwise, args.columnwise_is_aligned);
      }
    }
  }
  if constexpr (WholeTensorScheme<S>) {
    if (args.amax_bits != nullptr) RaiseByBlock(args.amax_bits, tensor_amax);
  } else if constexpr (kColumnwise) {
    StoreColumnScales<S>(args, state, place.origin, amaxes);
  }
  if constexpr (kColumnwise) {
    __syncthreads();
    if constexpr (kTransposes) StoreTransposed(args, place.origin, tile);
    if (args.strip_sums != nullptr) StoreStripSums<T>(args, place.origin, items);
  }
}

constexpr int kFlatChunks = 4;  // chunks that a thread of QuantizeFlat loads before it uses them

/// Quantizes a whole tensor's rows without gaps between them, `count` items.
template <Scheme S, class T>
__global__ void __launch_bounds__(kThreads)
    QuantizeFlat(const __grid_constant__ QuantizeArguments args, std::size_t count) {
  using F = typename S::Element;
  AwaitPrevious();
  if (Skips(args.noop)) return;
  const float scale = *args.tensor_scale;
  const std::size_t first =
      (std::size_t{blockIdx.x} * kFlatChunks * kThreads + threadIdx.x) * kItems;
  constexpr std::size_t kStep = std::size_t{kThreads} * kItems;
  const bool whole = args.in.is_aligned && args.rowwise_is_aligned &&
                     (std::size_t{blockIdx.x} + 1) * kFlatChunks * kStep <= count;
  Chunk<T> chunks[kFlatChunks];
  if (whole) {
#pragma unroll
    for (int i = 0; i < kFlatChunks; ++i)
      chunks[i].LoadAligned(args.in.data +
                            (first + static_cast<std::size_t>(i) * kStep) * kItemSize<T>);
  } else {
#pragma unroll
    for (int i = 0; i < kFlatChunks; ++i) {
      const std::size_t at = first + static_cast<std::size_t>(i) * kStep;
      if (at < count) {
        chunks[i].Load(args.in.data, at, count, args.in.is_aligned);
      } else {
        chunks[i].Clear();
      }
    }
  }
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kFlatChunks; ++i) {
    const std::size_t at = first + static_cast<std::size_t>(i) * kStep;
    if (args.amax_bits != nullptr) amax = fmaxf(amax, chunks[i].Amax());
    std::uint32_t codes[2];
#pragma unroll
    for (int w = 0; w < 2; ++w)
      codes[w] = EncodeWord<F>([&](int k) { return chunks[i].Item(w * 4 + k) * scale; });
    if (at < count)
      StoreBytes<8>(args.rowwise.codes + at, codes, count - at, args.rowwise_is_aligned);
  }
  if (args.amax_bits != nullptr) RaiseByBlock(args.amax_bits, amax);
}

}  // namespace
}  // namespace narrowfloat::cuda
