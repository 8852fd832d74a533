// SPDX-License-Identifier: Apache-2.0
// Transposes 128x128 codes of 8 bits in shared memory.
//
// The tile is an array of 16-byte pieces, 8 per row, in the order of CodePieceAt(). Columns are
// read as words: a thread loads one word (4 columns) of 16 rows and transposes each 4 rows of it.
// It then has 16 adjacent codes of 4 columns. The 8 lanes that load the same word of different rows
// are 16 rows apart; CodePieceAt() puts their pieces into different banks. Pieces of one row, or
// halves or words of them, are in different banks anyway.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace narrowfloat::cuda {

constexpr unsigned kCodeTile = 128;         // rows and columns
constexpr unsigned kCodePieces = 8;         // pieces of a row of the tile
constexpr unsigned kCodeGroupRows = 16;     // rows that a thread collects
constexpr unsigned kCodeTileThreads = 256;  // threads that each collect 4 columns

/// Returns the position in shared memory of a 16-byte piece of a row of codes.
__device__ __forceinline__ unsigned CodePieceAt(unsigned row, unsigned piece) {
  return row * kCodePieces + (piece ^ row / kCodeGroupRows);
}

/// Transposes a 4x4 matrix of bytes. A word is a row; the first byte is the lowest.
__device__ __forceinline__ void TransposeFourByFour(std::uint32_t (&words)[4]) {
  const std::uint32_t low = __byte_perm(words[0], words[1], 0x5140);
  const std::uint32_t high = __byte_perm(words[0], words[1], 0x7362);
  const std::uint32_t next_low = __byte_perm(words[2], words[3], 0x5140);
  const std::uint32_t next_high = __byte_perm(words[2], words[3], 0x7362);
  words[0] = __byte_perm(low, next_low, 0x5410);
  words[1] = __byte_perm(low, next_low, 0x7632);
  words[2] = __byte_perm(high, next_high, 0x5410);
  words[3] = __byte_perm(high, next_high, 0x7632);
}

/// A thread's codes of a transposed tile: columns [col, col + 4) of rows [row, row + 16). 8
/// adjacent threads have all rows of 4 columns.
struct CodeColumns {
  unsigned row, col;
  std::uint32_t words[4][4];  // [column][word], in the order of rows
};

/// Returns a thread's codes of a tile. Requires: threads [0, kCodeTileThreads), after a barrier
/// that follows the stores of the tile.
__device__ __forceinline__ CodeColumns CollectColumns(const uint4* tile, unsigned thread) {
  constexpr unsigned kGroups = kCodeTile / kCodeGroupRows;
  const unsigned word = thread / kGroups;
  CodeColumns columns;
  columns.row = thread % kGroups * kCodeGroupRows;
  columns.col = word * 4;
  const auto* from =
      reinterpret_cast<const std::uint32_t*>(tile + CodePieceAt(columns.row, word / 4)) + word % 4;
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    std::uint32_t four[4];
#pragma unroll
    for (unsigned r = 0; r < 4; ++r) four[r] = from[(i * 4 + r) * kCodePieces * 4];
    TransposeFourByFour(four);
#pragma unroll
    for (unsigned c = 0; c < 4; ++c) columns.words[c][i] = four[c];
  }
  return columns;
}

}  // namespace narrowfloat::cuda
