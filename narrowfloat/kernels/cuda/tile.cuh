// SPDX-License-Identifier: Apache-2.0
// Tiles that blocks of threads take.
#pragma once

#include "narrowfloat/kernels/cuda/items.cuh"
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

/// Position of a 16-byte piece of a line of codes in shared memory. With 8 pieces, those of 8 lines
/// that are 2 or 8 lines apart lie in different banks.
template <int kPieces>
__device__ __forceinline__ int PieceAt(int line, int piece) {
  return line * kPieces + (piece ^ ((line ^ line / 8) & (kPieces - 1)));
}

}  // namespace
}  // namespace narrowfloat::cuda
