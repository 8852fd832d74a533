// SPDX-License-Identifier: Apache-2.0
// Amaxes of tensors, rows and columns, and the Hadamard transform.
#include <cuda_runtime.h>

#include <algorithm>

#include "narrowfloat/kernels/cuda/hadamard.cuh"
#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"

namespace narrowfloat::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;  // chunks that a thread loads before it uses them

/// Returns the number of blocks for `tasks`, which blocks take in turns if there are too many.
unsigned Blocks(std::size_t tasks) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  return static_cast<unsigned>(std::min(tasks, kMost));
}

/// A block takes kLoads * kThreads chunks of the tensor, whose rows have `chunks` each.
template <class T>
__global__ void __launch_bounds__(kThreads)
    AmaxKernel(const Rows<const std::byte> in, unsigned* amax_bits) {
  const std::size_t chunks = CeilDiv(in.shape.cols, Chunk<T>::kItems);
  const std::size_t total = in.shape.rows * chunks;
  const std::size_t step = std::size_t{gridDim.x} * kLoads * kThreads;
  float amax = 0.0f;
  for (std::size_t first = std::size_t{blockIdx.x} * kLoads * kThreads; first < total;
       first += step) {
    Chunk<T> loaded[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const std::size_t chunk = first + static_cast<std::size_t>(i * kThreads) + threadIdx.x;
      if (chunk < total) {
        const std::size_t row = chunk / chunks, col = chunk % chunks * Chunk<T>::kItems;
        loaded[i].Load(in.Row(row), col, in.shape.cols, in.is_aligned);
      } else {
        loaded[i].Clear();
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) amax = fmaxf(amax, loaded[i].Amax());
  }
  RaiseByBlock(amax_bits, amax);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    RowAmaxKernel(const Rows<const std::byte> in, unsigned* amax_bits) {
  for (std::size_t row = blockIdx.x; row < in.shape.rows; row += gridDim.x) {
    float amax = 0.0f;
    for (std::size_t col = threadIdx.x * Chunk<T>::kItems; col < in.shape.cols;
         col += kThreads * Chunk<T>::kItems) {
      Chunk<T> chunk;
      chunk.Load(in.Row(row), col, in.shape.cols, in.is_aligned);
      amax = fmaxf(amax, chunk.Amax());
    }
    RaiseByBlock(amax_bits + row, amax);
    __syncthreads();
  }
}

constexpr std::size_t kRowsOfTask = 64;

/// A thread takes one column of kRowsOfTask rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    ColumnAmaxKernel(const Rows<const std::byte> in, unsigned* amax_bits) {
  const std::size_t col_tasks = CeilDiv(in.shape.cols, kThreads);
  const std::size_t col = blockIdx.x % col_tasks * kThreads + threadIdx.x;
  const std::size_t first = blockIdx.x / col_tasks * kRowsOfTask;
  if (col >= in.shape.cols) return;
  float amax = 0.0f;
  for (std::size_t i = 0; i < kRowsOfTask && first + i < in.shape.rows; ++i)
    amax = fmaxf(amax, fabsf(LoadItem<T>(in.Row(first + i), col)));
  atomicMax(amax_bits + col, std::bit_cast<std::uint32_t>(amax));
}

/// A thread transforms one column of 16 rows. Stores the items if `out` has data; else it raises
/// *amax_bits to their amax.
template <class T>
__global__ void __launch_bounds__(kThreads)
    HadamardKernel(const Rows<const std::byte> in, const Rows<std::byte> out,
                   std::uint32_t sign_mask, unsigned* amax_bits) {
  const std::size_t col_tasks = CeilDiv(in.shape.cols, kThreads);
  const std::size_t col = blockIdx.x % col_tasks * kThreads + threadIdx.x;
  const std::size_t first = blockIdx.x / col_tasks * kHadamardSize;
  float amax = 0.0f;
  if (col < in.shape.cols) {
    float group[kHadamardSize];
    std::uint32_t items[kHadamardSize];
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) group[k] = LoadItem<T>(in.Row(first + k), col);
    TransformGroup<T>(group, sign_mask, items);
#pragma unroll
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      if (out.data != nullptr) {
        std::byte* to = out.Row(first + k) + col * kItemSize<T>;
#pragma unroll
        for (std::size_t b = 0; b < kItemSize<T>; ++b)
          to[b] = static_cast<std::byte>(items[k] >> (8 * b));
      } else if constexpr (kItemSize<T> == 4) {
        amax = fmaxf(amax, fabsf(std::bit_cast<float>(items[k])));
      } else {
        amax = fmaxf(amax, fabsf(Widen<T>(items[k])));
      }
    }
  }
  if (out.data == nullptr) RaiseByBlock(amax_bits, amax);
}

void RunHadamard(DType dtype, const Rows<const std::byte>& in, const Rows<std::byte>& out,
                 std::uint32_t sign_mask, unsigned* amax_bits, Stream stream) {
  const std::size_t tasks = CeilDiv(in.shape.cols, kThreads) * (in.shape.rows / kHadamardSize);
  WithType(dtype, [&]<class T>() {
    Launch(&HadamardKernel<T>, dim3(static_cast<unsigned>(tasks)), dim3(kThreads), 0, stream, in,
           out, sign_mask, amax_bits);
  });
}

}  // namespace

void RaiseAmax(DType dtype, const Rows<const std::byte>& in, unsigned* amax_bits, Stream stream) {
  WithType(dtype, [&]<class T>() {
    const std::size_t chunks = in.shape.rows * CeilDiv(in.shape.cols, Chunk<T>::kItems);
    Launch(&AmaxKernel<T>, dim3(Blocks(CeilDiv(chunks, kLoads * kThreads))), dim3(kThreads), 0,
           stream, in, amax_bits);
  });
}

void RaiseLineAmaxes(DType dtype, const Rows<const std::byte>& in, Direction direction,
                     unsigned* amax_bits, Stream stream) {
  if (in.shape.Size() == 0) return;
  WithType(dtype, [&]<class T>() {
    if (direction == Direction::kRowwise) {
      Launch(&RowAmaxKernel<T>, dim3(Blocks(in.shape.rows)), dim3(kThreads), 0, stream, in,
             amax_bits);
    } else {
      const std::size_t tasks =
          CeilDiv(in.shape.cols, kThreads) * CeilDiv(in.shape.rows, kRowsOfTask);
      Launch(&ColumnAmaxKernel<T>, dim3(static_cast<unsigned>(tasks)), dim3(kThreads), 0, stream,
             in, amax_bits);
    }
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
