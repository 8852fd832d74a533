// SPDX-License-Identifier: Apache-2.0
// Moves codes and scales without changing their values; updates delayed scales.
#include <cuda_runtime.h>

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/transpose.cuh"
#include "narrowfloat/numerics/delayed_scale.h"
#include "narrowfloat/numerics/e8m0.h"

namespace narrowfloat::cuda {
namespace {

constexpr int kThreads = 256;

dim3 GridFor(std::size_t threads) {
  return dim3(static_cast<unsigned>(CeilDiv(threads, kThreads)));
}

__device__ std::size_t ThreadIndex() {
  return std::size_t{blockIdx.x} * kThreads + threadIdx.x;
}

constexpr int kPiecesOfThread = 4;  // 16-byte pieces; a thread loads all before it stores the first
constexpr std::size_t kCopiedByBlock = std::size_t{16} * kPiecesOfThread * kThreads;

__global__ void __launch_bounds__(kThreads)
    CopyKernel(std::byte* to, const std::byte* from, std::size_t bytes, bool aligned,
               const float* noop) {
  AwaitPrevious();
  if (Skips(noop)) return;
  const std::size_t first = blockIdx.x * kCopiedByBlock + threadIdx.x * std::size_t{16};
  const auto at = [&](int i) { return first + static_cast<std::size_t>(i) * 16 * kThreads; };
  std::uint32_t words[kPiecesOfThread][4] = {};
#pragma unroll
  for (int i = 0; i < kPiecesOfThread; ++i) {
    if (from != nullptr && at(i) < bytes)
      LoadBytes<16>(from + at(i), bytes - at(i), aligned, words[i]);
  }
#pragma unroll
  for (int i = 0; i < kPiecesOfThread; ++i) {
    if (at(i) < bytes) StoreBytes<16>(to + at(i), words[i], bytes - at(i), aligned);
  }
}

__global__ void PermuteKernel(const std::byte* from, const ScaleStrides from_strides, std::byte* to,
                              const ScaleStrides to_strides, const MatrixShape stored,
                              const MatrixShape kept) {
  const std::size_t item = ThreadIndex();
  if (item >= stored.Size()) return;
  const std::size_t line = item / stored.cols, block = item % stored.cols;
  const bool is_kept = line < kept.rows && block < kept.cols;
  to[to_strides.LineOffset(line) + to_strides.BlockOffset(block)] =
      is_kept ? from[from_strides.LineOffset(line) + from_strides.BlockOffset(block)]
              : std::byte{0};
}

__global__ void __launch_bounds__(kCodeTileThreads, 5)
    TransposeBytesKernel(const std::byte* from, std::byte* to, MatrixShape shape,
                         bool from_is_aligned, bool to_is_aligned) {
  constexpr unsigned kPieces = kCodeTile * kCodePieces / kCodeTileThreads;  // pieces per thread
  constexpr unsigned kStep = kCodeTile / kPieces;                           // rows between pieces
  __shared__ uint4 tile[kCodeTile * kCodePieces];
  const auto col_tasks = static_cast<unsigned>(CeilDiv(shape.cols, kCodeTile));
  const std::size_t first_row = std::size_t{blockIdx.x / col_tasks} * kCodeTile;
  const std::size_t first_col = std::size_t{blockIdx.x % col_tasks} * kCodeTile;
  const unsigned own_row = threadIdx.x / kCodePieces, piece = threadIdx.x % kCodePieces;
  std::uint32_t loaded[kPieces][4] = {};
#pragma unroll
  for (unsigned i = 0; i < kPieces; ++i) {
    const std::size_t row = first_row + own_row + i * kStep, col = first_col + piece * 16;
    if (row < shape.rows && col < shape.cols)
      LoadBytes<16>(from + row * shape.cols + col, shape.cols - col, from_is_aligned, loaded[i]);
  }
#pragma unroll
  for (unsigned i = 0; i < kPieces; ++i) {
    tile[CodePieceAt(own_row + i * kStep, piece)] =
        make_uint4(loaded[i][0], loaded[i][1], loaded[i][2], loaded[i][3]);
  }
  __syncthreads();
  const CodeColumns columns = CollectColumns(tile, threadIdx.x);
  const std::size_t row = first_row + columns.row;
  if (row >= shape.rows) return;
#pragma unroll
  for (unsigned c = 0; c < 4; ++c) {
    const std::size_t col = first_col + columns.col + c;
    if (col < shape.cols)
      StoreBytes<16>(to + col * shape.rows + row, columns.words[c], shape.rows - row,
                     to_is_aligned);
  }
}

/// Transposes 4-bit codes. A thread writes one byte: two rows of a column.
__global__ void TransposeNibblesKernel(const std::byte* from, std::byte* to, MatrixShape shape) {
  const std::size_t item = ThreadIndex(), pairs = shape.rows / 2;
  if (item >= pairs * shape.cols) return;
  // Adjacent threads process adjacent columns, which share bytes of the input.
  const std::size_t col = item % shape.cols, pair = item / shape.cols;
  const auto nibble = [&](std::size_t row) {
    const auto both = static_cast<unsigned>(from[row * (shape.cols / 2) + col / 2]);
    return col % 2 == 0 ? both & 0xFu : both >> 4;
  };
  to[col * pairs + pair] = static_cast<std::byte>(nibble(pair * 2) | nibble(pair * 2 + 1) << 4);
}

__global__ void TransposeScalesKernel(const ScaleTransposition call) {
  const std::size_t item = ThreadIndex();
  if (item >= call.lines * call.blocks) return;
  const std::size_t i = item / call.blocks, j = item % call.blocks;
  const std::size_t source =
      call.from_strides.LineOffset(j * call.block_rows / call.lines_per_scale) +
      call.from_strides.BlockOffset(i * call.lines_per_scale / call.block_cols);
  const std::size_t target = call.to_strides.LineOffset(i) + call.to_strides.BlockOffset(j);
  for (std::size_t b = 0; b < call.item_bytes; ++b)
    call.to[target * call.item_bytes + b] = call.from[source * call.item_bytes + b];
}

__global__ void ExponentKernel(const ExponentCall call) {
  const std::size_t item = ThreadIndex();
  if (item >= call.lines * call.blocks) return;
  const std::size_t line = item / call.blocks, block = item % call.blocks;
  const std::size_t source = call.from_strides.LineOffset(line / call.lines_per_scale) +
                             call.from_strides.BlockOffset(block / call.blocks_per_scale);
  const float scale_inv = LoadFloat(call.from + source * 4);
  const std::uint32_t code = EncodeE8M0Up(scale_inv);
  if (!(scale_inv > 0.0f) || DecodeE8M0(code) != scale_inv) {
    const std::size_t index = item < 0xFFFFFFFEu ? item : 0xFFFFFFFEu;
    atomicMax(call.refused, ~static_cast<unsigned>(index));
    return;
  }
  call.to[call.to_strides.LineOffset(line) + call.to_strides.BlockOffset(block)] =
      static_cast<std::byte>(code);
}

/// Updates delayed scaling. A thread updates one scale and rolls its column of the history.
__global__ void DelayedScaleKernel(const DelayedScaleCall call) {
  const std::size_t column = ThreadIndex(), cols = call.shape.cols;
  if (column >= cols) return;
  std::byte* history = call.history + column * 4;
  const auto at = [&](std::size_t row) { return history + row * cols * 4; };
  const float reduced =
      call.reduced_amax != nullptr ? LoadFloat(call.reduced_amax + column * 4) : 0.0f;
  const float newest = reduced != 0.0f ? reduced : LoadFloat(at(0));
  float amax = 0.0f;
  if (newest != 0.0f) {
    amax = LargerAmax(0.0f, newest);
    for (std::size_t row = 1; row < call.shape.rows; ++row) {
      const float older = LoadFloat(at(row));
      amax = LargerAmax(amax, older);
      if (row > 1) StoreFloat(at(row - 1), older);
    }
    StoreFloat(at(call.shape.rows - 1), newest);
    StoreFloat(at(0), 0.0f);  // the same item, if there is one row
  }
  std::byte* scale = call.scale + column * 4;
  StoreFloat(scale,
             DelayedScale(call.most_recent ? newest : amax, call.scaled_max, LoadFloat(scale)));
}

}  // namespace

void CopyBytes(std::byte* to, const std::byte* from, std::size_t bytes, const float* noop,
               Stream stream) {
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % 16 == 0;
  Launch<Start::kEarly>(&CopyKernel, dim3(static_cast<unsigned>(CeilDiv(bytes, kCopiedByBlock))),
                        dim3(kThreads), 0, stream, to, from, bytes, aligned, noop);
}

void PermuteScales(const std::byte* from, const ScaleStrides& from_strides, std::byte* to,
                   const ScaleStrides& to_strides, const ScaleGrid& grid, MatrixShape kept,
                   Stream stream) {
  const MatrixShape stored{grid.padded_lines, grid.padded_blocks};
  Launch(&PermuteKernel, GridFor(stored.Size()), dim3(kThreads), 0, stream, from, from_strides, to,
         to_strides, stored, kept);
}

void Transpose(const std::byte* from, std::byte* to, MatrixShape shape, int item_bits,
               Stream stream) {
  if (item_bits == 4) {
    Launch(&TransposeNibblesKernel, GridFor(shape.rows / 2 * shape.cols), dim3(kThreads), 0, stream,
           from, to, shape);
  } else {
    const auto aligned = [](const std::byte* data, std::size_t stride) {
      return (reinterpret_cast<std::uintptr_t>(data) | stride) % 16 == 0;
    };
    const std::size_t tasks = CeilDiv(shape.rows, kCodeTile) * CeilDiv(shape.cols, kCodeTile);
    Launch(&TransposeBytesKernel, dim3(static_cast<unsigned>(tasks)), dim3(kCodeTileThreads), 0,
           stream, from, to, shape, aligned(from, shape.cols), aligned(to, shape.rows));
  }
}

void TransposeScales(const ScaleTransposition& call, Stream stream) {
  Launch(&TransposeScalesKernel, GridFor(call.lines * call.blocks), dim3(kThreads), 0, stream,
         call);
}

void StoreExponents(const ExponentCall& call, Stream stream) {
  Launch(&ExponentKernel, GridFor(call.lines * call.blocks), dim3(kThreads), 0, stream, call);
}

void UpdateDelayedScale(const DelayedScaleCall& call) {
  Launch(&DelayedScaleKernel, GridFor(call.shape.cols), dim3(kThreads), 0, call.stream, call);
}

}  // namespace narrowfloat::cuda
