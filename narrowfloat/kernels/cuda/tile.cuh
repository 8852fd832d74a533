// SPDX-License-Identifier: Apache-2.0
// Tiles that blocks of threads process.
#pragma once

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cuda {
namespace {

constexpr int kTile = 128, kThreads = 256;
constexpr int kItems = 8;                        // items of a chunk of 8-bit codes
constexpr int kStripRows = 32, kStripCols = 64;  // strip of a warp
constexpr int kFourBitPieces = kTile / 32;       // 16-byte pieces per line of 4-bit codes of a tile
[[maybe_unused]] constexpr unsigned kAllLanes = 0xFFFFFFFFu;

struct TileOrigin {
  std::size_t row, col;
};

// The largest number of rows of tiles in a grid's second dimension; more rows use the third. It is
// 1 in the emulation, so that its tests use the third dimension.
#if defined(NF_CUDA_EMULATION)
constexpr unsigned kTilesOfGrid = 1;
#else
constexpr unsigned kTilesOfGrid = 65535;
#endif

/// Returns the origin of the block's tile. A grid may have more rows of tiles than the tensor; then
/// their origins are below its last row.
__device__ __forceinline__ TileOrigin Origin() {
  return {(std::size_t{blockIdx.z} * kTilesOfGrid + blockIdx.y) * kTile,
          std::size_t{blockIdx.x} * kTile};
}

dim3 GridOf(MatrixShape shape) {
  if (shape.Size() == 0) return dim3(0);
  const std::size_t rows = CeilDiv(shape.rows, kTile);
  return dim3(static_cast<unsigned>(CeilDiv(shape.cols, kTile)),
              static_cast<unsigned>(rows < kTilesOfGrid ? rows : kTilesOfGrid),
              static_cast<unsigned>(CeilDiv(rows, kTilesOfGrid)));
}

/// A thread's position in its block's tile. The thread processes a chunk of items in each of
/// kPasses rows at distances of kRowsOfPass.
template <int kItemsOfChunk>
struct TilePlace {
  static constexpr int kChunks = kTile / kItemsOfChunk;   // chunks per row
  static constexpr int kRowsOfPass = kThreads / kChunks;  // 16 or 32
  static constexpr int kPasses = kTile / kRowsOfPass;     // 8 or 4
  static constexpr int kPassesAtOnce = kPasses / 2;       // passes with loads in flight together

  TileOrigin origin;
  int row, col;  // in the tile, of pass 0
  std::size_t col_of_tensor;
  int items;            // items of a chunk in the tensor
  std::size_t rows;     // of the tensor
  bool tile_is_inside;  // the whole tile is in the tensor

  __device__ __forceinline__ explicit TilePlace(MatrixShape shape)
      : origin(Origin()),
        row(static_cast<int>(threadIdx.x) / kChunks),
        col(static_cast<int>(threadIdx.x) % kChunks * kItemsOfChunk),
        col_of_tensor(origin.col + static_cast<std::size_t>(col)),
        rows(shape.rows),
        tile_is_inside(origin.row + kTile <= shape.rows && origin.col + kTile <= shape.cols) {
    const std::size_t left = col_of_tensor < shape.cols ? shape.cols - col_of_tensor : 0;
    items = static_cast<int>(left < kItemsOfChunk ? left : kItemsOfChunk);
  }

  __device__ __forceinline__ std::size_t Row(int pass) const {
    return origin.row + static_cast<std::size_t>(pass * kRowsOfPass + row);
  }
  /// Returns the index of the square block of kBlock items that contains a pass's chunk.
  template <int kBlock>
  __device__ __forceinline__ int Square(int pass) const {
    return (pass * kRowsOfPass + row) / kBlock * (kTile / kBlock) + col / kBlock;
  }
  /// Returns the number of a pass's items in the tensor.
  __device__ __forceinline__ int Valid(int pass) const { return Row(pass) < rows ? items : 0; }
};

/// Returns true if a tile is in the tensor, and the rows are aligned and a fixed distance apart.
template <int kItemsOfChunk>
__device__ __forceinline__ bool IsPlain(const Rows<const std::byte>& in,
                                        const TilePlace<kItemsOfChunk>& place) {
  return place.tile_is_inside && in.is_aligned && in.dims == 1;
}

/// Loads the chunks of passes from `first` on; items outside of the tensor are 0. is_plain is the
/// result of IsPlain().
template <class T, int kItemsOfChunk, int kCount>
__device__ __forceinline__ void LoadChunks(const Rows<const std::byte>& in,
                                           const TilePlace<kItemsOfChunk>& place, bool is_plain,
                                           int first, Chunk<T, kItemsOfChunk> (&chunks)[kCount]) {
  if (is_plain) {
    // No branch between the loads, so that all are in flight together.
    const auto stride = in.strides[0];
    const std::byte* from = in.data + static_cast<std::int64_t>(place.Row(first)) * stride +
                            static_cast<std::int64_t>(place.col_of_tensor * kItemSize<T>);
#pragma unroll
    for (int i = 0; i < kCount; ++i) chunks[i].LoadAligned(from + i * place.kRowsOfPass * stride);
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

/// Returns the position of a 16-byte piece of a line of codes in shared memory. The same piece of 8
/// lines at a distance of 2 is in different banks, and so are the pieces that 8 threads store in
/// order. With 8 pieces, this also holds for lines at a distance of 8.
template <int kPieces>
__device__ __forceinline__ int PieceAt(int line, int piece) {
  static_assert(kPieces == 4 || kPieces == 8);
  if constexpr (kPieces == 4) return (line * kPieces + piece) ^ (line / 2 & 7);
  return line * kPieces + (piece ^ ((line ^ line / 8) & 7));
}

}  // namespace
}  // namespace narrowfloat::cuda
