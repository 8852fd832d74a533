// SPDX-License-Identifier: Apache-2.0
// Quantizes and dequantizes for one scheme, the one with index NF_CUDA_SCHEME in AllSchemes.
//
// QuantizeTiles: a block of 256 threads processes a tile of 128x128 items. Each thread loads items
// of several rows, 8 bytes of codes of each, before it uses them. Rows are encoded from registers.
// Squares of NVFP4 with options, and all columns, are encoded from a copy of the tile in shared
// memory: each warp encodes a strip of 32 rows and 64 columns, and each of its threads two adjacent
// columns. Their codes are collected in shared memory and stored 16 bytes at a time.
// QuantizeSameCodes (whole tensors and squares of 8-bit codes) and QuantizeSquares (squares of
// 4-bit codes) encode once for both directions, from registers. QuantizeFlat encodes the rows of a
// whole tensor without tiles.
#include <cuda_runtime.h>

#include <tuple>
#include <type_traits>

#include "narrowfloat/kernels/cuda/dequantize.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/quantize_columns.cuh"
#include "narrowfloat/kernels/cuda/quantize_four_bit_columns.cuh"
#include "narrowfloat/kernels/cuda/quantize_rows.cuh"
#include "narrowfloat/kernels/cuda/quantize_same_codes.cuh"
#include "narrowfloat/kernels/cuda/quantize_squares.cuh"
#include "narrowfloat/kernels/cuda/scheme_kernels.h"
#include "narrowfloat/kernels/cuda/tile.cuh"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat::cuda {
namespace {

/// Bytes of shared memory for the columns' codes of a tile, if they do not overwrite its items.
template <Scheme S>
[[maybe_unused]] inline constexpr std::size_t kPiecesBytes =
    kBits<typename S::Element> == 4 ? std::size_t{kTile} * kFourBitPieces * 16 : 0;

/// Blocks per multiprocessor that have enough registers: some load while others compute.
template <Scheme S, class T, bool kColumnwise, Extras kExtras>
[[maybe_unused]] inline constexpr int kBlocksOfMultiprocessor = [] {
  if (kExtras == Extras::kOptions) return kColumnwise ? 2 : 3;
  if (kExtras == Extras::kStochastic && kColumnwise) return kItemSize<T> == 4 ? 2 : 3;
  if (kExtras == Extras::kTransform) return kItemSize<T> == 4 ? 2 : 3;
  if (kColumnwise && kItemSize<T> == 4) return 2;
  return kColumnwise && (kBits<typename S::Element> == 8 || kBlockItems<S> > 16) ? 3 : 4;
}();

/// Quantizes the tile of a block of threads. kPlain: the tile is IsPlain(), and codes are aligned.
template <Scheme S, class T, bool kRowwise, bool kColumnwise, Extras kExtras, bool kPlain>
__device__ __forceinline__ void QuantizeTile(const QuantizeArguments& args, const Place<S>& place,
                                             SharedAmaxes<S>& amaxes) {
  constexpr bool kWithOptions = kExtras == Extras::kOptions;
  std::byte* tile = DynamicShared();
  using Items = ChunkOf<S, T>;
  const bool is_plain = kPlain || IsPlain(args.in, place);
  constexpr int kPasses = Place<S>::kPasses, kPassesAtOnce = Place<S>::kPassesAtOnce;
  const auto chunk_at = [&](int pass) {
    const int item = (pass * place.kRowsOfPass + place.row) * kTile + place.col;
    return reinterpret_cast<uint4*>(tile + static_cast<std::size_t>(item) * kItemSize<T>);
  };
  [[maybe_unused]] const auto square_of = [&](int pass) -> unsigned& {
    return amaxes.square[place.template Square<kBlockItems<S>>(pass)];
  };
  [[maybe_unused]] const RowPlace<S, kPlain> out(args, place);
  if constexpr (kIsSquare<S> || (kColumnwise && kStripRows < kBlockItems<S>)) {
    for (int i = static_cast<int>(threadIdx.x); i < kBlocks<S> * kBlocks<S>; i += kThreads)
      amaxes.square[i] = 0;
    if (threadIdx.x == 0) amaxes.largest = 0;
    if (threadIdx.x < kTile) amaxes.column[threadIdx.x] = 0;
    __syncthreads();
  }

  [[maybe_unused]] typename S::TensorState state{};
  if constexpr (kRowwise) state = StateOf<S>(args, args.rowwise);
  [[maybe_unused]] const float* factors = FactorsOf<S>(args.rowwise);
#pragma unroll 1
  for (int first = 0; first < kPasses; first += kPassesAtOnce) {
    Items chunks[kPassesAtOnce];
    LoadChunks(args.in, place, is_plain, first, chunks);
    [[maybe_unused]] float block_amaxes[kPassesAtOnce];
    [[maybe_unused]] std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kPassesAtOnce; ++i) {
      if constexpr (kColumnwise || kIsSquare<S>) chunks[i].Store(chunk_at(first + i));
      if constexpr (kIsSquare<S> || kRowwise) {
        const ItemsAmax amax = chunks[i].FindAmax();
        block_amaxes[i] = AmaxOfRowBlock<S>(amax.value);
        largest = amax.largest > largest ? amax.largest : largest;
      }
      if constexpr (kIsSquare<S>) {
        if (place.col % kBlockItems<S> == 0)
          atomicMax(&square_of(first + i), std::bit_cast<std::uint32_t>(block_amaxes[i]));
      }
    }
    if constexpr (kIsSquare<S>) {
      if (largest >= kFloatInfinity) amaxes.largest = largest;
    } else if constexpr (kRowwise) {
      const bool is_special = largest >= kFloatInfinity;
      if (kWithOptions && (UsesFourOverSix<S>(state) || args.rowwise.line_amaxes != nullptr)) {
#pragma unroll 1
        for (int pass = first; pass < first + kPassesAtOnce; ++pass) {
          // Loads again: an array in registers cannot have a variable index.
          Items chunk[1];
          LoadChunks(args.in, place, is_plain, pass, chunk);
          const float amax = AmaxOfRowBlock<S>(chunk[0].Amax());
          const float scale = RowScale<S, T, kExtras>(args, state, factors, chunk[0], amax, place,
                                                      out, pass, nullptr);
          EncodeChunk<S, T, kExtras>(args, place, out, chunk[0], amax, scale, is_special, pass);
        }
      } else {
        float scales[kPassesAtOnce];
        FindRowScales<S, kWithOptions>(state, factors, block_amaxes, out, first, scales);
#pragma unroll
        for (int i = 0; i < kPassesAtOnce; ++i)
          EncodeChunk<S, T, kExtras>(args, place, out, chunks[i], block_amaxes[i], scales[i],
                                     is_special, first + i);
      }
    }
  }
  if constexpr (kColumnwise || kIsSquare<S>) __syncthreads();

  if constexpr (kIsSquare<S> && kRowwise) {
    SharedErrors* errors = nullptr;
    if (kWithOptions && UsesFourOverSix<S>(state)) {
      errors = reinterpret_cast<SharedErrors*>(tile + kTileBytes<T> + kPiecesBytes<S>);
#pragma unroll 1
      for (int pass = 0; pass < kPasses; ++pass) {
        Items chunk;
        chunk.Fetch(chunk_at(pass));
        float of_row[2];
        FindErrors<S>(
            state, [&](int i) { return chunk.Item(i); }, place.Valid(pass),
            CandidatesOf<S>(std::bit_cast<float>(square_of(pass)), state, factors), of_row);
#pragma unroll
        for (int c = 0; c < 2; ++c)
          errors->of_row[c][pass * place.kRowsOfPass + place.row][place.col / kErrorItems] =
              of_row[c];
      }
      __syncthreads();
    }
#pragma unroll 2
    for (int pass = 0; pass < kPasses; ++pass) {
      Items chunk;
      chunk.Fetch(chunk_at(pass));
      const auto amax = std::bit_cast<float>(square_of(pass));
      const float scale =
          RowScale<S, T, kExtras>(args, state, factors, chunk, amax, place, out, pass, errors);
      EncodeChunk<S, T, kExtras>(args, place, out, chunk, amax, scale,
                                 amaxes.largest >= kFloatInfinity, pass);
    }
  }
  if constexpr (kColumnwise) {
    if (args.strip_sums != nullptr) {
      StoreStripSums<T>(args, place.origin, tile);
      __syncthreads();
    }
  }
  if constexpr (kColumnwise && kBits<typename S::Element> == 4) {
    QuantizeFourBitColumns<S, T, kExtras, kPlain>(
        args, place.origin, tile, reinterpret_cast<uint4*>(tile + kTileBytes<T>), amaxes);
  } else if constexpr (kColumnwise) {
    QuantizeColumns<S, T>(args, place.origin, tile, amaxes);
  }
}

template <Scheme S, class T, bool kRowwise, bool kColumnwise, Extras kExtras>
__global__ void __launch_bounds__(kThreads, kBlocksOfMultiprocessor<S, T, kColumnwise, kExtras>)
    QuantizeTiles(const __grid_constant__ QuantizeArguments args) {
  AwaitPrevious();
  if (Skips(args.noop)) return;
  __shared__ SharedAmaxes<S> amaxes;
  const Place<S> place(args.in.shape);
  if (place.origin.row >= args.in.shape.rows) return;
  if constexpr (kBits<typename S::Element> == 4 && kExtras != Extras::kOptions) {
    // The number of instructions limits this kernel: tiles inside the tensor are quantized without
    // checks of its edges.
    if (IsPlain(args.in, place) && args.rowwise_is_aligned && args.columnwise_is_aligned)
      return QuantizeTile<S, T, kRowwise, kColumnwise, kExtras, true>(args, place, amaxes);
  }
  QuantizeTile<S, T, kRowwise, kColumnwise, kExtras, false>(args, place, amaxes);
}

bool IsAligned(const DirectionMemory<std::byte>& out, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(out.codes) | out.code_stride) % bytes == 0;
}

template <Scheme S, class T, bool kRowwise, bool kColumnwise>
void LaunchTiles(const QuantizeArguments& args, Stream stream) {
  const auto launch = [&](auto* kernel, std::size_t shared_bytes) {
    Launch<Start::kEarly>(kernel, GridOf(args.in.shape), dim3(kThreads), shared_bytes, stream,
                          args);
  };
  if constexpr (kHasSameCodes<S>) {
    launch(&QuantizeSameCodes<S, T, kRowwise, kColumnwise>,
           kColumnwise && args.strip_sums != nullptr ? kTileBytes<T> : 0);
  } else {
    constexpr std::size_t kBytes =
        kColumnwise || kIsSquare<S> ? kTileBytes<T> + kPiecesBytes<S> : 0;
    if constexpr (FourOverSixScheme<S> || S::kOptions.Has(Option::kStochasticRounding) ||
                  S::kOptions.Has(Option::kRowScaled)) {
      bool has_options = args.options.four_over_six != FourOverSix::kOff ||
                         args.rowwise.line_amaxes != nullptr ||
                         args.columnwise.line_amaxes != nullptr;
      if constexpr (kHasFourBitSquares<S>) {
        has_options |= args.stochastic;
      } else if (args.stochastic && !has_options) {
        return launch(&QuantizeTiles<S, T, kRowwise, kColumnwise, Extras::kStochastic>, kBytes);
      }
      // Only this kernel supports different scales for the directions of square blocks, and keeps
      // the items in shared memory for sums of columns. QuantizeSquares does neither.
      const bool differ =
          kRowwise && kColumnwise && !args.rowwise.amax.IsSame(args.columnwise.amax);
      if (has_options || (kHasFourBitSquares<S> && (differ || args.strip_sums != nullptr))) {
        return launch(&QuantizeTiles<S, T, kRowwise, kColumnwise, Extras::kOptions>,
                      kBytes + (kIsSquare<S> ? sizeof(SharedErrors) : 0));
      }
    }
    if constexpr (kColumnwise && S::kOptions.Has(Option::kHadamard)) {
      if (args.transforms)
        return launch(&QuantizeTiles<S, T, kRowwise, kColumnwise, Extras::kTransform>, kBytes);
    }
    if constexpr (kHasFourBitSquares<S>) {
      launch(&QuantizeSquares<S, T, kRowwise, kColumnwise>, 0);
    } else {
      launch(&QuantizeTiles<S, T, kRowwise, kColumnwise, Extras::kNone>, kBytes);
    }
  }
}

/// Quantizes rows alone.
template <Scheme S, class T>
void LaunchRows(const QuantizeArguments& args, Stream stream) {
  if constexpr (WholeTensorScheme<S>) {
    const MatrixShape shape = args.in.shape;
    const auto row_bytes = static_cast<std::int64_t>(shape.cols * kItemSize<T>);
    if (args.in.dims == 1 && (args.in.strides[0] == row_bytes || shape.rows == 1)) {
      constexpr std::size_t kOfBlock = std::size_t{kFlatChunks} * kThreads * kItems;
      QuantizeArguments flat = args;
      // The start must be aligned; the rows need not be.
      flat.in.is_aligned = reinterpret_cast<std::uintptr_t>(args.in.data) % 16 == 0;
      flat.rowwise_is_aligned = reinterpret_cast<std::uintptr_t>(args.rowwise.codes) % 8 == 0;
      return Launch<Start::kEarly>(&QuantizeFlat<S, T>,
                                   dim3(static_cast<unsigned>(CeilDiv(shape.Size(), kOfBlock))),
                                   dim3(kThreads), 0, stream, flat, shape.Size());
    }
  }
  LaunchTiles<S, T, true, false>(args, stream);
}

template <Scheme S, class T>
void QuantizeAs(const QuantizeCall& call) {
  QuantizeArguments args{call.in,
                         call.rowwise,
                         call.columnwise,
                         IsAligned(call.rowwise, 8),
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
inline constexpr unsigned kNumbersThreads = TwoLevelScheme<S> ? kScaleCodes : 1;

/// Stores a tensor's numbers, and the factors of its scales' codes. Requires: one block of
/// kNumbersThreads<S> threads.
template <Scheme S>
__global__ void StoreNumbersKernel(const TensorNumbers call) {
  AwaitPrevious();
  if (Skips(call.noop)) return;
  if constexpr (S::kLayout.amax == AmaxBuffers::kPerDirection) {
    static_assert(TwoLevelScheme<S> && sizeof(StoredState<S>) <= kMostStateBytes);
    const auto store = [&](std::byte* to, const Number& of_direction) {
      if (to == nullptr) return;
      auto* stored = reinterpret_cast<StoredState<S>*>(to);
      const typename S::TensorState state = S::Prepare(of_direction.Get(), call.options);
      if (threadIdx.x == 0) stored->tensor = state;
      stored->factors[threadIdx.x] = S::FactorOfCode(threadIdx.x, state);
    };
    store(call.rowwise_state, call.rowwise_amax);
    store(call.columnwise_state, call.columnwise_amax);
    if (threadIdx.x != 0) return;
  }
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
  Launch<Start::kEarly>(&StoreNumbersKernel<S>, dim3(1), dim3(kNumbersThreads<S>), 0, call.stream,
                        call);
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
