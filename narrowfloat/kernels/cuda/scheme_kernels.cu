// SPDX-License-Identifier: Apache-2.0
// Quantizes and dequantizes for one scheme, number NF_CUDA_SCHEME of AllSchemes.
//
// QuantizeTiles: a block of 256 threads takes a tile of 128x128 items. Each thread loads 8 items of
// each of 4 rows, 16 apart, before it uses them. Rows are encoded from registers; NVFP4's squares,
// and all columns, from a copy of the tile in shared memory. Of columns, each warp takes a strip of
// 32 rows and 64 columns, and each of its threads two adjacent columns. Their codes are collected
// in shared memory and stored 16 bytes at a time. QuantizeSameCodes encodes whole tensors and 8-bit
// squares once for both directions, from registers. QuantizeFlat encodes the rows of a whole tensor
// without tiles.
#include <cuda_runtime.h>

#include <tuple>
#include <type_traits>

#include "narrowfloat/kernels/cuda/dequantize.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/quantize_columns.cuh"
#include "narrowfloat/kernels/cuda/quantize_rows.cuh"
#include "narrowfloat/kernels/cuda/quantize_same_codes.cuh"
#include "narrowfloat/kernels/cuda/scheme_kernels.h"
#include "narrowfloat/kernels/cuda/tile.cuh"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat::cuda {
namespace {

/// Blocks that a multiprocessor has registers for, so that some load while others compute.
template <Scheme S, class T, bool kColumnwise>
[[maybe_unused]] inline constexpr int kBlocksOfMultiprocessor =
    (kColumnwise ? 3 : 4) - (kBits<typename S::Element> == 4 || (kColumnwise && kItemSize<T> == 4));

template <Scheme S, class T, bool kRowwise, bool kColumnwise>
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor<S, T, kColumnwise>)
    QuantizeTiles(const __grid_constant__ QuantizeArguments args) {
  if (Skips(args.noop)) return;
  __shared__ SharedAmaxes<S> amaxes;
  std::byte* tile = DynamicShared();
  const TilePlace place(args.in.shape);
  const auto chunk_at = [&](int pass) {
    const int item = (pass * kRowsOfPass + place.row) * kTile + place.col;
    return reinterpret_cast<uint4*>(tile + static_cast<std::size_t>(item) * kItemSize<T>);
  };
  [[maybe_unused]] const auto square_of = [&](int pass) -> unsigned& {
    return amaxes.square[(pass * kRowsOfPass + place.row) / kBlockItems<S> * kBlocks<S> +
                         place.col / kBlockItems<S>];
  };
  [[maybe_unused]] const auto encode = [&](const Chunk<T>& chunk, float scale, int pass) {
    const int valid = place.Valid(pass);
    if (valid > 0)
      EncodeChunk<S, T>(args, chunk, scale, place.Row(pass), place.col_of_tensor, valid);
  };

  if constexpr (kIsSquare<S> || (kColumnwise && kStripRows < kBlockItems<S>)) {
    for (int i = static_cast<int>(threadIdx.x); i < kBlocks<S> * kBlocks<S>; i += kThreads)
      amaxes.square[i] = 0;
    if (threadIdx.x < kTile) amaxes.column[threadIdx.x] = 0;
    __syncthreads();
  }

  [[maybe_unused]] typename S::TensorState state{};
  if constexpr (kRowwise) state = StateOf<S>(args, args.rowwise);
#pragma unroll 1
  for (int first = 0; first < kPasses; first += kPassesAtOnce) {
    Chunk<T> chunks[kPassesAtOnce];
    LoadChunks(args.in, place, first, chunks);
    [[maybe_unused]] float block_amaxes[kPassesAtOnce];
#pragma unroll
    for (int i = 0; i < kPassesAtOnce; ++i) {
      if constexpr (kColumnwise || kIsSquare<S>) chunks[i].Store(chunk_at(first + i));
      if constexpr (kIsSquare<S> || kRowwise) block_amaxes[i] = AmaxOfRowBlock<S>(chunks[i].Amax());
      if constexpr (kIsSquare<S>) {
        if (place.col % kBlockItems<S> == 0)
          atomicMax(&square_of(first + i), std::bit_cast<std::uint32_t>(block_amaxes[i]));
      }
    }
    if constexpr (!kIsSquare<S> && kRowwise) {
      if (UsesFourOverSix<S>(state) || args.rowwise.line_amaxes != nullptr) {
#pragma unroll 1
        for (int pass = first; pass < first + kPassesAtOnce; ++pass) {
          // Loads again: an array of registers has no index.
          Chunk<T> chunk[1];
          LoadChunks(args.in, place, pass, chunk);
          const float amax = AmaxOfRowBlock<S>(chunk[0].Amax());
          const float scale = RowScale<S, T>(args, state, chunk[0], amax, place.Row(pass),
                                             place.col_of_tensor, place.Valid(pass), pass, nullptr);
          encode(chunk[0], scale, pass);
        }
      } else {
        float scales[kPassesAtOnce];
        FindRowScales<S>(args, state, block_amaxes, place, first, scales);
#pragma unroll
        for (int i = 0; i < kPassesAtOnce; ++i) encode(chunks[i], scales[i], first + i);
      }
    }
  }
  if constexpr (kColumnwise || kIsSquare<S>) __syncthreads();

  if constexpr (kIsSquare<S> && kRowwise) {
    SharedErrors* errors = nullptr;
    if (UsesFourOverSix<S>(state)) {
      errors = reinterpret_cast<SharedErrors*>(tile + kTileBytes<T>);
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        Chunk<T> chunk;
        chunk.Fetch(chunk_at(pass));
        StoreRowErrors<S, T>(state, chunk, std::bit_cast<float>(square_of(pass)), place.Valid(pass),
                             pass, *errors);
      }
      __syncthreads();
    }
#pragma unroll 2
    for (int pass = 0; pass < kPasses; ++pass) {
      Chunk<T> chunk;
      chunk.Fetch(chunk_at(pass));
      const float scale =
          RowScale<S, T>(args, state, chunk, std::bit_cast<float>(square_of(pass)), place.Row(pass),
                         place.col_of_tensor, place.Valid(pass), pass, errors);
      encode(chunk, scale, pass);
    }
  }
  if constexpr (kColumnwise) {
    if (args.strip_sums != nullptr) {
      StoreStripSums<T>(args, place.origin, tile);
      __syncthreads();
    }
  }
  if constexpr (kColumnwise && S::kOptions.Has(Option::kHadamard)) {
    if (args.transforms) {
      TransformTile<T>(tile, args.sign_mask);
      __syncthreads();
    }
  }
  if constexpr (kColumnwise) QuantizeColumns<S, T>(args, place.origin, tile, amaxes);
}

bool IsAligned(const DirectionMemory<std::byte>& out, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(out.codes) | out.code_stride) % bytes == 0;
}

template <Scheme S, class T, bool kRowwise, bool kColumnwise>
void LaunchTiles(const QuantizeArguments& args, Stream stream) {
  const dim3 grid = GridOf(args.in.shape);
  if constexpr (kHasSameCodes<S>) {
    const std::size_t bytes = kColumnwise && args.strip_sums != nullptr ? kTileBytes<T> : 0;
    Launch(&QuantizeSameCodes<S, T, kRowwise, kColumnwise>, grid, dim3(kThreads), bytes, stream,
           args);
  } else {
    std::size_t bytes = kColumnwise || kIsSquare<S> ? kTileBytes<T> : 0;
    if constexpr (kIsSquare<S>) bytes += sizeof(SharedErrors);
    Launch(&QuantizeTiles<S, T, kRowwise, kColumnwise>, grid, dim3(kThreads), bytes, stream, args);
  }
}

/// Quantizes rows alone.
template <Scheme S, class T>
void LaunchRows(const QuantizeArguments& args, Stream stream) {
  if constexpr (WholeTensorScheme<S>) {
    const MatrixShape shape = args.in.shape;
    const auto row_bytes = static_cast<std::int64_t>(shape.cols * kItemSize<T>);
    if (args.in.dims == 1 && (args.in.strides[0] == row_bytes || shape.rows == 1)) {
      constexpr std::size_t kOfBlock = std::size_t{kPassesAtOnce} * kThreads * kItems;
      QuantizeArguments flat = args;
      // The rows need no alignment of their own.
      flat.in.is_aligned = reinterpret_cast<std::uintptr_t>(args.in.data) % 16 == 0;
      flat.rowwise_is_aligned = reinterpret_cast<std::uintptr_t>(args.rowwise.codes) % 8 == 0;
      return Launch(&QuantizeFlat<S, T>,
                    dim3(static_cast<unsigned>(CeilDiv(shape.Size(), kOfBlock))), dim3(kThreads), 0,
                    stream, flat, shape.Size());
    }
  }
  LaunchTiles<S, T, true, false>(args, stream);
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
                         call.strip_sums,
                         call.stochastic,
                         call.random,
                         call.random_at,
                         call.transforms,
                         call.sign_mask,
                         call.noop};
  const bool rowwise = call.rowwise.codes != nullptr, columnwise = call.columnwise.codes != nullptr;
  if (!columnwise) return LaunchRows<S, T>(args, call.stream);
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
  if (call.zeroed != nullptr) *call.zeroed = 0;
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
