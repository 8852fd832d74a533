// SPDX-License-Identifier: Apache-2.0
// Tiles that blocks of threads take.
#pragma once

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cuda {
namespace {

constexpr int kTile = 128, kThreads = 256;
constexpr int kItems = 8;                        // of a chunk
constexpr int kChunks = kTile / kItems;          // of a row
constexpr int kRowsOfPass = kThreads / kChunks;  // 16
constexpr int kPasses = kTile / kRowsOfPass;     // 8
constexpr int kPassesAtOnce = 4;                 // whose loads are in flight together
constexpr int kStripRows = 32, kStripCols = 64;  // of a warp
[[maybe_unused]] constexpr unsigned kAllLanes = 0xFFFFFFFFu;

struct TileOrigin {
  std::size_t row, col;
};

__device__ __forceinline__ TileOrigin Origin(MatrixShape shape) {
  const auto cols = static_cast<unsigned>((shape.cols + kTile - 1) / kTile);
  return {std::size_t{blockIdx.x / cols} * kTile, std::size_t{blockIdx.x % cols} * kTile};
}

dim3 GridOf(MatrixShape shape) {
  if (shape.Size() == 0) return dim3(0);
  return dim3(static_cast<unsigned>(CeilDiv(shape.rows, kTile) * CeilDiv(shape.cols, kTile)));
}

/// A thread's place in its block's tile: it has 8 items of each of 8 rows, 16 apart, of which pass
/// i takes one.
struct TilePlace {
  TileOrigin origin;
  int row, col;  // in the tile, of pass 0
  std::size_t col_of_tensor;
  int items;            // of a chunk that lie in the tensor
  std::size_t rows;     // of the tensor
  bool tile_is_inside;  // the whole tile lies in the tensor

  __device__ __forceinline__ explicit TilePlace(MatrixShape shape)
      : origin(Origin(shape)),
        row(static_cast<int>(threadIdx.x) / kChunks),
        col(static_cast<int>(threadIdx.x) % kChunks * kItems),
        col_of_tensor(origin.col + static_cast<std::size_t>(col)),
        rows(shape.rows),
        tile_is_inside(origin.row + kTile <= shape.rows && origin.col + kTile <= shape.cols) {
    const std::size_t left = col_of_tensor < shape.cols ? shape.cols - col_of_tensor : 0;
    items = static_cast<int>(left < kItems ? left : kItems);
  }

  __device__ __forceinline__ std::size_t Row(int pass) const {
    return origin.row + static_cast<std::size_t>(pass * kRowsOfPass + row);
  }
  /// Returns how many items of a pass lie in the tensor.
  __device__ __forceinline__ int Valid(int pass) const { return Row(pass) < rows ? items : 0; }
};

/// Loads the chunks of passes from `first` on; items outside of the tensor are 0.
template <class T, int kCount>
__device__ __forceinline__ void LoadChunks(const Rows<const std::byte>& in, const TilePlace& place,
                                           int first, Chunk<T> (&chunks)[kCount]) {
  if (place.tile_is_inside && in.is_aligned && in.dims == 1) {
    // Without a branch between them, so that all loads are in flight together.
    const auto stride = in.strides[0];
    const std::byte* from = in.data + static_cast<std::int64_t>(place.Row(first)) * stride +
                            static_cast<std::int64_t>(place.col_of_tensor * kItemSize<T>);
#pragma unroll
    for (int i = 0; i < kCount; ++i) chunks[i].LoadAligned(from + i * kRowsOfPass * stride);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (place.Valid(first + i) > 0) {
      chunks[i].Load(in.Row(place.Row(first + i)), place.col_of_tensor, in.shape.cols,
                     in.is_aligned);
    } else {
      chunks[i].Clear();
    }
  }
}

/// Position of a 16-byte piece of a line of codes in shared memory. With 8 pieces, those of 8 lines
/// that are 2 or 8 lines apart lie in different banks.
template <int kPieces>
__device__ __forceinline__ int PieceAt(int line, int piece) {
  return line * kPieces + (piece ^ ((line ^ line / 8) & (kPieces - 1)));
}

}  // namespace
}  // namespace narrowfloat::cuda
