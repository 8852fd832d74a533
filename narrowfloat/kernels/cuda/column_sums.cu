// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"

namespace narrowfloat::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kCols = 4;                // columns that a thread sums
constexpr unsigned kAddedCols = 32;     // columns of a block that adds strips
constexpr unsigned kLoadingWarps = 8;   // warps that each load some of the block's strips
constexpr unsigned kStripsOfWarp = 16;  // strips that a warp loads at once

/// Sums kCols adjacent columns of a strip per thread, row after row. Loads the items of several
/// rows before adding them: each addition depends on the one before, and the loads do not.
template <class T>
__global__ void __launch_bounds__(kThreads, 8)
    StripKernel(const __grid_constant__ Rows<const std::byte> in, float* workspace,
                const float* noop) {
  constexpr int kBytes = kCols * static_cast<int>(kItemSize<T>);
  constexpr int kRowsAtOnce = 128 / kBytes;
  if (Skips(noop)) return;
  const std::size_t cols = in.shape.cols, col_tasks = CeilDiv(cols, kThreads * kCols);
  const std::size_t col = (blockIdx.x % col_tasks * kThreads + threadIdx.x) * kCols;
  const std::size_t strip = blockIdx.x / col_tasks, first = strip * kSumStripRows;
  if (col >= cols) return;
  const std::size_t rows_left = in.shape.rows - first;
  const std::size_t end = first + (rows_left < kSumStripRows ? rows_left : kSumStripRows);
  float sums[kCols] = {};
  const auto add = [&sums](const std::uint32_t(&words)[kBytes / 4]) {
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      if constexpr (kItemSize<T> == 4) {
        sums[c] += std::bit_cast<float>(words[c]);
      } else {
        sums[c] += Widen<T>(c % 2 == 0 ? words[c / 2] & 0xFFFFu : words[c / 2] >> 16);
      }
    }
  };
  const auto last = static_cast<std::size_t>(in.dims - 1);
  const bool at_one_stride =
      in.dims == 1 || (in.sizes[last] % kRowsAtOnce == 0 && kSumStripRows % kRowsAtOnce == 0);
  std::size_t row = first;
  if (at_one_stride && in.is_aligned && col + kCols <= cols) {
#pragma unroll 1
    for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) {
      const std::byte* from = in.Row(row) + col * kItemSize<T>;
      std::uint32_t words[kRowsAtOnce][kBytes / 4];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i, from += in.strides[last])
        LoadBytes<kBytes>(from, kBytes, true, words[i]);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) add(words[i]);
    }
  }
#pragma unroll 1
  for (; row < end; ++row) {
    std::uint32_t words[kBytes / 4];
    LoadBytes<kBytes>(in.Row(row) + col * kItemSize<T>, (cols - col) * kItemSize<T>, in.is_aligned,
                      words);
    add(words);
  }
#pragma unroll
  for (std::size_t c = 0; c < kCols; ++c) {
    if (col + c < cols) workspace[strip * cols + col + c] = sums[c];
  }
}

/// Adds the strips of 32 columns per block in order. One warp adds; all warps of the block load to
/// shared memory, so that the loads of many strips are in flight together.
template <class T>
__global__ void __launch_bounds__(kAddedCols* kLoadingWarps)
    AddStripsKernel(const float* workspace, MatrixShape strips, std::byte* out, const float* noop) {
  constexpr unsigned kAtOnce = kLoadingWarps * kStripsOfWarp;
  __shared__ float loaded[kAtOnce][kAddedCols];
  AwaitPrevious();
  if (Skips(noop)) return;
  const unsigned warp = threadIdx.x / kAddedCols, lane = threadIdx.x % kAddedCols;
  const std::size_t col = std::size_t{blockIdx.x} * kAddedCols + lane;
  const bool is_inside = col < strips.cols;
  float sum = 0.0f;
  for (std::size_t first = 0; first < strips.rows; first += kAtOnce) {
    float own[kStripsOfWarp];
#pragma unroll
    for (unsigned i = 0; i < kStripsOfWarp; ++i) {
      const std::size_t strip = first + warp * kStripsOfWarp + i;
      own[i] = is_inside && strip < strips.rows ? workspace[strip * strips.cols + col] : 0.0f;
    }
#pragma unroll
    for (unsigned i = 0; i < kStripsOfWarp; ++i) loaded[warp * kStripsOfWarp + i][lane] = own[i];
    __syncthreads();
    if (warp == 0) {
      const std::size_t left = strips.rows - first;
      const auto count = static_cast<unsigned>(left < kAtOnce ? left : kAtOnce);
#pragma unroll 16
      for (unsigned i = 0; i < count; ++i) sum += loaded[i][lane];
    }
    __syncthreads();
  }
  if (warp == 0 && is_inside) StoreItem<T>(out, col, sum);
}

}  // namespace

void SumStrips(DType dtype, const Rows<const std::byte>& in, float* strip_sums, const float* noop,
               Stream stream) {
  const std::size_t tasks =
      CeilDiv(in.shape.cols, kThreads * kCols) * CeilDiv(in.shape.rows, kSumStripRows);
  WithType(dtype, [&]<class T>() {
    Launch(&StripKernel<T>, dim3(static_cast<unsigned>(tasks)), dim3(kThreads), 0, stream, in,
           strip_sums, noop);
  });
}

void AddStrips(const float* strip_sums, MatrixShape shape, DType out_dtype, std::byte* out,
               const float* noop, Stream stream) {
  WithType(out_dtype, [&]<class T>() {
    Launch<Start::kEarly>(&AddStripsKernel<T>,
                          dim3(static_cast<unsigned>(CeilDiv(shape.cols, kAddedCols))),
                          dim3(kAddedCols * kLoadingWarps), 0, stream, strip_sums,
                          MatrixShape{CeilDiv(shape.rows, kSumStripRows), shape.cols}, out, noop);
  });
}

}  // namespace narrowfloat::cuda
