// SPDX-License-Identifier: Apache-2.0
// Amaxes of tensors, rows and columns, and the Hadamard transform.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#include "narrowfloat/kernels/cuda/hadamard.cuh"
#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"

namespace narrowfloat::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;          // loads that a thread issues before it uses the first one
constexpr unsigned kResident = 8;  // blocks on a multiprocessor of 2048 threads
// Blocks per multiprocessor for which the launch bound makes the compiler keep registers free.
// Multiprocessors of compute capability 8.6, 8.9 and 12 have room for 1536 threads.
[[maybe_unused]] constexpr unsigned kBoundedTo =
    NF_DEVICE_ARCH == 860 || NF_DEVICE_ARCH == 890 || NF_DEVICE_ARCH >= 1200 ? 6 : kResident;

/// Returns the largest of `amax` and the magnitudes of a word's items. Ignores NaN.
template <class T>
__device__ __forceinline__ float RaiseByWord(float amax, std::uint32_t word) {
  if constexpr (kItemSize<T> == 4) {
    return fmaxf(amax, fabsf(std::bit_cast<float>(word)));
  } else {
    return fmaxf(amax, fmaxf(fabsf(Widen<T>(word & 0xFFFFu)), fabsf(Widen<T>(word >> 16))));
  }
}

/// Sets *to to the maximum of itself and `bits`. Other threads may do the same.
__device__ __forceinline__ void Raise(unsigned* to, unsigned bits) {
  if (bits > *static_cast<volatile unsigned*>(to)) atomicMax(to, bits);
}

/// Computes the amax of adjacent items: pieces of 16 bytes, and the items before and after them.
/// Blocks process pieces in turns. Requires: addresses of items are multiples of their size.
template <class T>
__global__ void __launch_bounds__(kThreads, kBoundedTo)
    FlatAmaxKernel(const std::byte* data, std::size_t items, unsigned* amax_bits) {
  AwaitPrevious();
  constexpr std::size_t kItemsOfPiece = 16 / kItemSize<T>;
  const std::size_t before = (0 - reinterpret_cast<std::uintptr_t>(data)) % 16 / kItemSize<T>;
  const std::size_t head = before < items ? before : items;
  const std::size_t count = (items - head) / kItemsOfPiece;
  const auto* pieces = reinterpret_cast<const uint4*>(data + head * kItemSize<T>);
  float amax = 0.0f;
  const auto raise = [&amax](const uint4& piece) {
    amax = RaiseByWord<T>(amax, piece.x);
    amax = RaiseByWord<T>(amax, piece.y);
    amax = RaiseByWord<T>(amax, piece.z);
    amax = RaiseByWord<T>(amax, piece.w);
  };
  constexpr std::size_t kOfBlock = std::size_t{kLoads} * kThreads;
  std::size_t first = blockIdx.x * kOfBlock;
  for (; first + kOfBlock <= count; first += gridDim.x * kOfBlock) {
    const uint4* from = pieces + first + threadIdx.x;
    uint4 loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) loaded[i] = __ldg(from + i * kThreads);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) raise(loaded[i]);
  }
  for (std::size_t piece = first + threadIdx.x; piece < count; piece += kThreads)
    raise(__ldg(pieces + piece));
  if (blockIdx.x == 0 && threadIdx.x < kItemsOfPiece) {
    const std::size_t last = head + count * kItemsOfPiece + threadIdx.x;
    if (threadIdx.x < head) amax = fmaxf(amax, fabsf(LoadItem<T>(data, threadIdx.x)));
    if (last < items) amax = fmaxf(amax, fabsf(LoadItem<T>(data, last)));
  }
  RaiseByBlock(amax_bits, amax);
}

constexpr int kLoadsOfTask = 16;

/// Raises the amax of each row, or of the tensor. A group of `lanes` threads of a warp processes
/// kLoadsOfTask chunks per thread of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    RowAmaxKernel(const __grid_constant__ Rows<const std::byte> in, unsigned lanes, bool per_row,
                  unsigned* amax_bits) {
  const std::size_t step = lanes * Chunk<T>::kItems,
                    segments = CeilDiv(in.shape.cols, step * kLoadsOfTask);
  const std::size_t task = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const std::size_t row = task / segments;
  float amax = 0.0f;
  if (row < in.shape.rows) {
    const std::byte* from = in.Row(row);
    std::size_t col =
        task % segments * step * kLoadsOfTask + threadIdx.x % lanes * Chunk<T>::kItems;
#pragma unroll 1
    for (int pass = 0; pass < kLoadsOfTask / kLoads && col < in.shape.cols; ++pass) {
      Chunk<T> loaded[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i, col += step) {
        if (col < in.shape.cols) {
          loaded[i].Load(from, col, in.shape.cols, in.is_aligned);
        } else {
          loaded[i].Clear();
        }
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) amax = fmaxf(amax, loaded[i].Amax());
    }
  }
  if (!per_row) return RaiseByBlock(amax_bits, amax);
  unsigned bits = std::bit_cast<std::uint32_t>(amax);
  for (unsigned other_lane = lanes / 2; other_lane > 0; other_lane /= 2) {
    const unsigned other = __shfl_xor_sync(0xFFFFFFFFu, bits, static_cast<int>(other_lane));
    bits = other > bits ? other : bits;
  }
  if (threadIdx.x % lanes == 0 && row < in.shape.rows) Raise(amax_bits + row, bits);
}

/// Returns true if `count` rows from a multiple of `count` on have the last dimension's stride.
__device__ __forceinline__ bool LieAtOneStride(const Rows<const std::byte>& in, int count) {
  return in.dims == 1 || in.sizes[static_cast<std::size_t>(in.dims - 1)] % count == 0;
}

constexpr int kWarps = kThreads / 32;
constexpr int kRowsOfWarp = 16;

/// Raises the amaxes of columns. A warp processes 8 columns per lane of kRowsOfWarp rows; the other
/// warps of its block process the same columns of more rows.
template <class T>
__global__ void __launch_bounds__(kThreads, 4)
    ColumnAmaxKernel(const __grid_constant__ Rows<const std::byte> in, unsigned* amax_bits) {
  constexpr int kItems = Chunk<T>::kItems;
  constexpr int kRowsAtOnce = 32 / Chunk<T>::kWords;
  static_assert(kItems * 32 == kThreads);
  __shared__ unsigned largest[kItems][32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  largest[warp][lane] = 0;
  __syncthreads();
  const std::size_t col_tasks = CeilDiv(in.shape.cols, kThreads);
  const std::size_t first_col = blockIdx.x % col_tasks * kThreads, col = first_col + lane * kItems;
  const std::size_t first = (blockIdx.x / col_tasks * kWarps + warp) * kRowsOfWarp;
  float amaxes[kItems] = {};
  const auto raise = [&amaxes](const Chunk<T>& chunk) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) amaxes[k] = fmaxf(amaxes[k], fabsf(chunk.Item(k)));
  };
  const std::size_t rows = col < in.shape.cols ? in.shape.rows : 0;
  const std::size_t end = first + kRowsOfWarp < rows ? first + kRowsOfWarp : rows;
  std::size_t row = first;
  if (in.is_aligned && col + kItems <= in.shape.cols && LieAtOneStride(in, kRowsAtOnce)) {
#pragma unroll 1
    for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) {
      const std::byte* from = in.Row(row) + col * kItemSize<T>;
      Chunk<T> loaded[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce;
           ++i, from += in.strides[static_cast<std::size_t>(in.dims - 1)])
        loaded[i].LoadAligned(from);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) raise(loaded[i]);
    }
  }
#pragma unroll 1
  for (; row < end; ++row) {
    Chunk<T> loaded;
    loaded.Load(in.Row(row), col, in.shape.cols, in.is_aligned);
    raise(loaded);
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k)
    atomicMax(&largest[k][lane], std::bit_cast<std::uint32_t>(amaxes[k]));
  __syncthreads();
  const std::size_t own = first_col + threadIdx.x;
  if (own < in.shape.cols)
    Raise(amax_bits + own, largest[threadIdx.x % kItems][threadIdx.x / kItems]);
}

/// Transforms a word of columns of 16 rows per thread. Stores the items if `out` has data; else
/// raises *amax_bits to their amax.
template <class T>
__global__ void __launch_bounds__(kThreads)
    HadamardKernel(const __grid_constant__ Rows<const std::byte> in,
                   const __grid_constant__ Rows<std::byte> out, std::uint32_t sign_mask,
                   unsigned* amax_bits) {
  const std::size_t cols = in.shape.cols, col_tasks = CeilDiv(cols, kThreads * kItemsOfWord<T>);
  const std::size_t col = (blockIdx.x % col_tasks * kThreads + threadIdx.x) * kItemsOfWord<T>;
  const std::size_t first = blockIdx.x / col_tasks * kHadamardSize;
  float amax = 0.0f;
  if (col < cols) {
    const std::size_t bytes = (cols - col) * kItemSize<T>;
    std::uint32_t words[kHadamardSize];
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      std::uint32_t word[1];
      LoadBytes<4>(in.Row(first + k) + col * kItemSize<T>, bytes, in.is_aligned, word);
      words[k] = word[0];
    }
    TransformWords<T>(words, sign_mask);
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      if (out.data != nullptr) {
        const std::uint32_t word[1] = {words[k]};
        StoreBytes<4>(out.Row(first + k) + col * kItemSize<T>, word, bytes, out.is_aligned);
      } else {
        amax = RaiseByWord<T>(amax, words[k]);
      }
    }
  }
  if (out.data == nullptr) RaiseByBlock(amax_bits, amax);
}

unsigned Multiprocessors() {
  int device = 0, count = 0;
  Check(cudaGetDevice(&device), "finding the current device");
  Check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "reading a property of the device");
  return static_cast<unsigned>(count);
}

template <class T>
void RunRowAmax(const Rows<const std::byte>& in, bool per_row, unsigned* amax_bits, Stream stream) {
  const std::size_t chunks = CeilDiv(in.shape.cols, Chunk<T>::kItems);
  const std::size_t lanes = std::min(std::bit_ceil(chunks), std::size_t{32});
  const std::size_t tasks = in.shape.rows * CeilDiv(chunks, lanes * kLoadsOfTask);
  Launch(&RowAmaxKernel<T>, dim3(static_cast<unsigned>(CeilDiv(tasks * lanes, kThreads))),
         dim3(kThreads), 0, stream, in, static_cast<unsigned>(lanes), per_row, amax_bits);
}

void RunHadamard(DType dtype, const Rows<const std::byte>& in, const Rows<std::byte>& out,
                 std::uint32_t sign_mask, unsigned* amax_bits, Stream stream) {
  WithType(dtype, [&]<class T>() {
    const std::size_t tasks =
        CeilDiv(in.shape.cols, kThreads * kItemsOfWord<T>) * (in.shape.rows / kHadamardSize);
    Launch(&HadamardKernel<T>, dim3(static_cast<unsigned>(tasks)), dim3(kThreads), 0, stream, in,
           out, sign_mask, amax_bits);
  });
}

}  // namespace

void RaiseAmax(DType dtype, const Rows<const std::byte>& in, unsigned* amax_bits, Stream stream) {
  const std::size_t items = in.shape.Size();
  if (items == 0) return;
  WithType(dtype, [&]<class T>() {
    const bool adjacent =
        in.shape.rows == 1 ||
        (in.dims == 1 && in.strides[0] == static_cast<std::int64_t>(in.shape.cols * kItemSize<T>));
    if (!adjacent || reinterpret_cast<std::uintptr_t>(in.data) % kItemSize<T> != 0)
      return RunRowAmax<T>(in, false, amax_bits, stream);
    const std::size_t blocks = CeilDiv(items * kItemSize<T>, std::size_t{16} * kLoads * kThreads);
    const std::size_t resident = std::size_t{Multiprocessors()} * kResident;
    Launch<Start::kEarly>(&FlatAmaxKernel<T>,
                          dim3(static_cast<unsigned>(std::min(blocks, resident))), dim3(kThreads),
                          0, stream, in.data, items, amax_bits);
  });
}

void RaiseLineAmaxes(DType dtype, const Rows<const std::byte>& in, Direction direction,
                     unsigned* amax_bits, Stream stream) {
  if (in.shape.Size() == 0) return;
  WithType(dtype, [&]<class T>() {
    if (direction == Direction::kRowwise) return RunRowAmax<T>(in, true, amax_bits, stream);
    const std::size_t tasks =
        CeilDiv(in.shape.cols, kThreads) * CeilDiv(in.shape.rows, kWarps * kRowsOfWarp);
    Launch(&ColumnAmaxKernel<T>, dim3(static_cast<unsigned>(tasks)), dim3(kThreads), 0, stream, in,
           amax_bits);
  });
}

void RaiseHadamardAmax(DType dtype, const Rows<const std::byte>& in, std::uint32_t sign_mask,
                       unsigned* amax_bits, Stream stream) {
  RunHadamard(dtype, in, Rows<std::byte>{}, sign_mask, amax_bits, stream);
}

void TransformHadamard(DType dtype, const Rows<const std::byte>& in, const Rows<std::byte>& out,
                       std::uint32_t sign_mask, Stream stream) {
  RunHadamard(dtype, in, out, sign_mask, nullptr, stream);
}

}  // namespace narrowfloat::cuda
