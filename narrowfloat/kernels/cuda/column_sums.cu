// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"

namespace narrowfloat::cuda {
namespace {

constexpr int kThreads = 128;

/// A thread sums two adjacent columns of a strip, row after row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    StripKernel(const Rows<const std::byte> in, float* workspace, std::size_t strip_rows,
                const float* noop) {
  if (Skips(noop)) return;
  const std::size_t col_tasks = CeilDiv(in.shape.cols, kThreads * 2);
  const std::size_t col = (blockIdx.x % col_tasks * kThreads + threadIdx.x) * 2;
  const std::size_t strip = blockIdx.x / col_tasks, first = strip * strip_rows;
  if (col >= in.shape.cols) return;
  const std::size_t rows_left = in.shape.rows - first;
  const int rows = static_cast<int>(rows_left < strip_rows ? rows_left : strip_rows);
  float sums[2] = {0.0f, 0.0f};
  const bool pairs = in.is_aligned && col + 2 <= in.shape.cols;
  if (pairs) {
#pragma unroll 16
    for (int i = 0; i < rows; ++i) {
      const std::byte* from = in.Row(first + static_cast<std::size_t>(i)) + col * kItemSize<T>;
      if constexpr (kItemSize<T> == 4) {
        const float2 both = __ldg(reinterpret_cast<const float2*>(from));
        sums[0] += both.x;
        sums[1] += both.y;
      } else {
        const std::uint32_t both = __ldg(reinterpret_cast<const unsigned*>(from));
        sums[0] += Widen<T>(both & 0xFFFFu);
        sums[1] += Widen<T>(both >> 16);
      }
    }
  } else {
    for (int i = 0; i < rows; ++i) {
      const std::byte* row = in.Row(first + static_cast<std::size_t>(i));
      sums[0] += LoadItem<T>(row, col);
      if (col + 1 < in.shape.cols) sums[1] += LoadItem<T>(row, col + 1);
    }
  }
  workspace[strip * in.shape.cols + col] = sums[0];
  if (col + 1 < in.shape.cols) workspace[strip * in.shape.cols + col + 1] = sums[1];
}

/// A thread adds the strips of one column in order.
template <class T>
__global__ void __launch_bounds__(kThreads)
    AddStripsKernel(const float* workspace, MatrixShape strips, std::byte* out, const float* noop) {
  if (Skips(noop)) return;
  const std::size_t col = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (col >= strips.cols) return;
  float sum = 0.0f;
#pragma unroll 8
  for (std::size_t strip = 0; strip < strips.rows; ++strip)
    sum += workspace[strip * strips.cols + col];
  StoreItem<T>(out, col, sum);
}

}  // namespace

void SumColumns(DType dtype, const Rows<const std::byte>& in, std::size_t strip_rows,
                float* workspace, DType out_dtype, std::byte* out, const float* noop,
                Stream stream) {
  const std::size_t strips = CeilDiv(in.shape.rows, strip_rows);
  const std::size_t tasks = CeilDiv(in.shape.cols, kThreads * 2) * strips;
  WithType(dtype, [&]<class T>() {
    Launch(&StripKernel<T>, dim3(static_cast<unsigned>(tasks)), dim3(kThreads), 0, stream, in,
           workspace, strip_rows, noop);
  });
  WithType(out_dtype, [&]<class T>() {
    Launch(&AddStripsKernel<T>, dim3(static_cast<unsigned>(CeilDiv(in.shape.cols, kThreads))),
           dim3(kThreads), 0, stream, static_cast<const float*>(workspace),
           MatrixShape{strips, in.shape.cols}, out, noop);
  });
}

}  // namespace narrowfloat::cuda
