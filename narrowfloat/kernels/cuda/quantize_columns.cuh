// SPDX-License-Identifier: Apache-2.0
// Quantizes the columns of a tile in shared memory, for schemes of 8-bit codes.
#pragma once

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/quantize_rows.cuh"

namespace narrowfloat::cuda {
namespace {

/// Two adjacent columns of some rows, in their stored form.
template <class T, int kRows = kStripRows>
struct ColumnPair {
  static constexpr int kWordsOfRow = static_cast<int>(kItemSize<T>) / 2;
  std::uint32_t words[kRows * kWordsOfRow];

  __device__ __forceinline__ void Load(const std::byte* tile, int row, int col) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::byte* from =
          tile + (static_cast<std::size_t>(row + i) * kTile + static_cast<std::size_t>(col)) *
                     kItemSize<T>;
      if constexpr (kWordsOfRow == 1) {
        words[i] = *reinterpret_cast<const std::uint32_t*>(from);
      } else {
        const uint2 both = *reinterpret_cast<const uint2*>(from);
        words[i * 2] = both.x;
        words[i * 2 + 1] = both.y;
      }
    }
  }
  /// Computes the amaxes of both columns.
  __device__ __forceinline__ void FindAmaxes(ItemsAmax (&amaxes)[2]) const {
    if constexpr (kWordsOfRow == 1) {
      const std::uint32_t largest = LargestMagnitudes<T, kRows, true>(words);
      amaxes[0].value = Widen<T>(largest & 0xFFFFu);
      amaxes[1].value = Widen<T>(largest >> 16);
#pragma unroll
      for (int column = 0; column < 2; ++column)
        amaxes[column].largest = std::bit_cast<std::uint32_t>(amaxes[column].value);
      if (!amaxes[0].IsSpecial() && !amaxes[1].IsSpecial()) return;
    }
#pragma unroll
    for (int column = 0; column < 2; ++column)
      amaxes[column] = FindFloatAmax<kRows>([&](int i) { return Item(column, i); });
  }
  __device__ __forceinline__ float Item(int column, int row) const {
    if constexpr (kWordsOfRow == 2) {
      return std::bit_cast<float>(words[row * 2 + column]);
    } else {
      return Widen<T>(column == 0 ? words[row] & 0xFFFFu : words[row] >> 16);
    }
  }
};

/// The position of a thread's two columns in a tile. Each warp processes a strip of 32 rows and 64
/// columns of the tile. kPlain: the tile is inside.
template <bool kPlain>
struct StripPlace {
  int row, col;    // in the tile
  int valid_rows;  // rows of the strip in the tensor
  bool is_valid[2];

  __device__ __forceinline__ StripPlace(MatrixShape shape, const TileOrigin& origin) {
    const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
    row = warp / 2 * kStripRows;
    col = warp % 2 * kStripCols + lane * 2;
    const auto left = static_cast<long long>(shape.rows - origin.row) - row;
    valid_rows = static_cast<int>(kPlain || left >= kStripRows ? kStripRows : left < 0 ? 0 : left);
#pragma unroll
    for (int column = 0; column < 2; ++column)
      is_valid[column] = kPlain || origin.col + static_cast<std::size_t>(col + column) < shape.cols;
  }
};

/// Stores a tile's transposed codes from shared memory, where PieceAt() gives their positions.
/// kPlain: the tile is inside, and codes are aligned.
template <int kCodeBits, bool kPlain>
__device__ __forceinline__ void StorePieces(const QuantizeArguments& args, const TileOrigin& origin,
                                            const uint4* pieces) {
  constexpr int kPieces = kTile * kCodeBits / 128;  // 16-byte pieces per line of the tile
  const DirectionMemory<std::byte>& out = args.columnwise;
  const MatrixShape shape = args.in.shape;
  // A thread's pieces are some lines apart.
  constexpr int kStep = kThreads / kPieces;
  const int first_line = static_cast<int>(threadIdx.x) / kPieces,
            piece = static_cast<int>(threadIdx.x) % kPieces;
  const std::size_t row = origin.row + static_cast<std::size_t>(piece * 128 / kCodeBits);
  std::size_t offset =
      (origin.col + static_cast<std::size_t>(first_line)) * out.code_stride + row * kCodeBits / 8;
  KeepOffset(offset);
#pragma unroll
  for (int i = 0; i < kTile / kStep; ++i) {
    const int line = first_line + i * kStep;
    std::byte* to = out.codes + offset + static_cast<unsigned>(i * kStep) * out.code_stride;
    const uint4 four = pieces[PieceAt<kPieces>(line, piece)];
    if constexpr (kPlain) {
      *reinterpret_cast<uint4*>(to) = four;
    } else if (origin.col + static_cast<std::size_t>(line) < shape.cols && row < shape.rows) {
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
      StoreBytes<16>(to, words, (shape.rows - row) * kCodeBits / 8, args.columnwise_is_aligned);
    }
  }
}

/// Encodes the columns of a tile from items in shared memory; codes overwrite the items.
template <Scheme S, class T>
__device__ __forceinline__ void QuantizeColumns(const QuantizeArguments& args,
                                                const TileOrigin& origin, std::byte* tile,
                                                SharedAmaxes<S>& amaxes) {
  using F = typename S::Element;
  static_assert(kBits<F> == 8 && !kIsSquare<S> && S::kLayout.lines_per_scale == 1 &&
                kBlockItems<S> >= kStripRows);
  const DirectionMemory<std::byte>& out = args.columnwise;
  const StripPlace<false> place(args.in.shape, origin);
  // Both columns are in one quarter of the lines' run.
  std::size_t scale_offset =
      (out.strides.LineOffset(origin.col + static_cast<std::size_t>(place.col)) +
       out.strides.BlockOffset(
           ScaleBlockIndex<S>(origin.row + static_cast<std::size_t>(place.row)))) *
      kScaleBytes<S>;
  KeepOffset(scale_offset);
  ColumnPair<T> pair;
  pair.Load(tile, place.row, place.col);
  ItemsAmax found[2];
  pair.FindAmaxes(found);
  float block_amaxes[2] = {found[0].value, found[1].value};
  if constexpr (kStripRows < kBlockItems<S>) {
    static_assert(kBlockItems<S> == kTile);
#pragma unroll
    for (int column = 0; column < 2; ++column)
      atomicMax(&amaxes.column[place.col + column],
                std::bit_cast<std::uint32_t>(block_amaxes[column]));
    __syncthreads();
#pragma unroll
    for (int column = 0; column < 2; ++column)
      block_amaxes[column] = std::bit_cast<float>(amaxes.column[place.col + column]);
  }
  const typename S::TensorState state = StateOf<S>(args, out);
  BlockScale scales[2];
#pragma unroll
  for (int column = 0; column < 2; ++column) {
    scales[column] = S::ScaleBlock(block_amaxes[column], state);
    const bool begins = kBlockItems<S> <= kStripRows || place.row == 0;
    if (begins && place.valid_rows > 0 && place.is_valid[column]) {
      const std::size_t item = static_cast<unsigned>(column) * out.strides.line;
      StoreScaleAt<S>(out.scale_inv + scale_offset + item * kScaleBytes<S>,
                      scales[column].scale_inv);
    }
  }

  __syncthreads();  // codes now overwrite the tile's items
  if constexpr (S::kLayout.columnwise_transposed) {
    constexpr int kOwn = kStripRows / 16;  // pieces of a column
    auto* pieces = reinterpret_cast<uint4*>(tile);
#pragma unroll
    for (int column = 0; column < 2; ++column) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        std::uint32_t codes[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          codes[w] = EncodeWord<F>(
              [&](int k) { return pair.Item(column, i * 16 + w * 4 + k) * scales[column].scale; });
        }
        pieces[PieceAt<8>(place.col + column, place.row / 16 + i)] =
            make_uint4(codes[0], codes[1], codes[2], codes[3]);
      }
    }
    __syncthreads();
    StorePieces<8, false>(args, origin, pieces);
  } else {
#pragma unroll
    for (int i = 0; i < kStripRows; ++i) {
      const std::uint32_t codes =
          EncodePair<F>(pair.Item(0, i) * scales[0].scale, pair.Item(1, i) * scales[1].scale);
      *reinterpret_cast<std::uint16_t*>(tile + (place.row + i) * kTile + place.col) =
          static_cast<std::uint16_t>(codes);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile * kTile / 16 / kThreads; ++i) {
      const int piece = i * kThreads + static_cast<int>(threadIdx.x);
      const std::size_t r = origin.row + static_cast<std::size_t>(piece / (kTile / 16));
      const std::size_t c = origin.col + static_cast<std::size_t>(piece % (kTile / 16) * 16);
      if (r >= args.in.shape.rows || c >= args.in.shape.cols) continue;
      const uint4 four = reinterpret_cast<const uint4*>(tile)[piece];
      const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
      StoreBytes<16>(out.codes + r * out.code_stride + c, words, args.in.shape.cols - c,
                     args.columnwise_is_aligned);
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cuda
