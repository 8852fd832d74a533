// SPDX-License-Identifier: Apache-2.0
// Quantizes by schemes of 4-bit codes and square blocks of 16x16 items. Rows and columns have the
// same codes, which are computed once.
#pragma once

#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/kernels/cuda/quantize_rows.cuh"
#include "narrowfloat/kernels/cuda/transpose.cuh"

namespace narrowfloat::cuda {
namespace {

template <Scheme S>
inline constexpr bool kHasFourBitSquares = kBits<typename S::Element> == 4 && kIsSquare<S>;

/// A tile of 4-bit codes in shared memory, as words of 8 codes of a row or of a column.
struct SharedCodes {
  static constexpr int kWords = kTile / 8;          // words per line
  alignas(16) std::uint32_t words[kTile * kWords];  // two are stored at a time

  /// Returns the position of a word of a row. Different halves of the banks hold the same word of
  /// rows that are 8 apart, and the words of adjacent rows.
  static __device__ __forceinline__ int OfRow(int row, int word) {
    return row / 2 * 2 * kWords + ((row ^ row / 8) & 1) * kWords + word;
  }
  /// Returns the position of a word of a column. Different banks hold the same word of columns that
  /// are 8 apart, and two adjacent words of these.
  static __device__ __forceinline__ int OfColumn(int column, int word) {
    return column / 2 * 2 * kWords + ((column ^ word) & 1) * kWords + (word ^ column / 8);
  }
};

/// Transposes a matrix of 8x8 codes. A word is a row; the first code is in its lowest bits.
__device__ __forceinline__ void TransposeEightByEight(std::uint32_t (&words)[8]) {
  constexpr std::uint32_t kEven = 0x0F0F0F0Fu;
  // Columns 2i and 2i + 1 of rows 2k and 2k + 1 become byte i of even[k] and odd[k].
  std::uint32_t even[4], odd[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t first = words[k * 2], second = words[k * 2 + 1];
    even[k] = (first & kEven) | (second << 4 & ~kEven);
    odd[k] = (first >> 4 & kEven) | (second & ~kEven);
  }
  TransposeFourByFour(even);
  TransposeFourByFour(odd);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i * 2] = even[i];
    words[i * 2 + 1] = odd[i];
  }
}

/// Stores the columns' codes of a tile from the rows' codes in `rows`. Uses `columns` for the words
/// of columns: a thread computes 8 words of one column each, and stores 4 of one column at a time.
__device__ __forceinline__ void StoreFourBitColumns(const QuantizeArguments& args,
                                                    const TileOrigin& origin,
                                                    const SharedCodes& rows, SharedCodes& columns) {
  const int thread = static_cast<int>(threadIdx.x);
  {
    const int word = thread % SharedCodes::kWords, group = thread / SharedCodes::kWords;
    std::uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = rows.words[SharedCodes::OfRow(group * 8 + i, word)];
    TransposeEightByEight(words);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      columns.words[SharedCodes::OfColumn(word * 8 + i, group)] = words[i];
  }
  __syncthreads();
  const DirectionMemory<std::byte>& out = args.columnwise;
  const MatrixShape shape = args.in.shape;
  const int piece = thread % kFourBitPieces;
  const std::size_t row = origin.row + static_cast<std::size_t>(piece * 32);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // The threads of a warp process columns that are 8 apart.
    const int column = (i * 8 + thread % 32 / kFourBitPieces) * 8 + thread / 32;
    std::uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w)
      words[w] = columns.words[SharedCodes::OfColumn(column, piece * 4 + w)];
    const std::size_t line = origin.col + static_cast<std::size_t>(column);
    if (line < shape.cols && row < shape.rows)
      StoreBytes<16>(out.codes + line * out.code_stride + row / 2, words,
                     CodeBytes(4, shape.rows - row), args.columnwise_is_aligned);
  }
}

template <Scheme S, class T, bool kRowwise, bool kColumnwise>
__global__ void __launch_bounds__(kThreads, kItemSize<T> == 4 ? 2 : 4)
    QuantizeSquares(const __grid_constant__ QuantizeArguments args) {
  static_assert(kBlockItems<S> == kChunkItems<S> && kThreads == SharedCodes::kWords * kTile / 8);
  AwaitPrevious();
  if (Skips(args.noop)) return;
  __shared__ unsigned amaxes[kBlocks<S> * kBlocks<S>];
  alignas(4) __shared__ std::uint8_t scales[kBlocks<S>][kBlocks<S>];  // [block column][block]
  __shared__ SharedCodes rows, columns;
  const Place<S> place(args.in.shape);
  if (place.origin.row >= args.in.shape.rows) return;
  constexpr int kPasses = Place<S>::kPasses;
  const auto square_of = [&](int pass) { return place.template Square<kBlockItems<S>>(pass); };
  if (threadIdx.x < kBlocks<S> * kBlocks<S>) amaxes[threadIdx.x] = 0;
  Chunk<T, kChunkItems<S>> chunks[kPasses];
  LoadChunks(args.in, place, IsPlain(args.in, place), 0, chunks);
  __syncthreads();
  std::uint32_t largest = 0;  // bits of the thread's largest magnitude
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const ItemsAmax found = chunks[pass].FindAmax();
    largest = found.largest > largest ? found.largest : largest;
    // A warp has 4 rows of 8 squares.
    float amax = found.value;
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 8));
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 16));
    if (threadIdx.x % 32 < 8) atomicMax(&amaxes[square_of(pass)], std::bit_cast<unsigned>(amax));
  }
  __syncthreads();
  const bool is_special = largest >= kFloatInfinity;
  const typename S::TensorState state = StateOf<S>(args, kRowwise ? args.rowwise : args.columnwise);
  [[maybe_unused]] const RowPlace<S, false> out(args, place);
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto amax = std::bit_cast<float>(amaxes[square_of(pass)]);
    const BlockScale scale = S::ScaleBlock(amax, state);  // here faster than loading its factor
    if constexpr (kRowwise) out.StoreScale(pass, scale.scale_inv);
    if (kColumnwise && place.row % kBlockItems<S> == 0)
      scales[square_of(pass) % kBlocks<S>][square_of(pass) / kBlocks<S>] =
          static_cast<std::uint8_t>(scale.scale_inv);
    std::uint32_t codes[2];
    EncodeFourBitChunk<S, T, Extras::kNone>(args, chunks[pass], amax, scale.scale, is_special, 0,
                                            codes);
    if constexpr (kRowwise) out.StoreCodes(pass, codes);
    if constexpr (kColumnwise) {
      const int row = pass * place.kRowsOfPass + place.row, word = place.col / 8;
      *reinterpret_cast<uint2*>(&rows.words[SharedCodes::OfRow(row, word)]) =
          make_uint2(codes[0], codes[1]);
    }
  }
  if constexpr (kColumnwise) {
    __syncthreads();
    StoreFourBitColumns(args, place.origin, rows, columns);
    // A thread stores the scales of 4 squares for one column.
    static_assert(kTile * kBlocks<S> == kThreads * 4);
    const int column = static_cast<int>(threadIdx.x) % kTile;
    const int block = static_cast<int>(threadIdx.x) / kTile * 4;
    StoreFourScales<S, false>(args, place.origin, column, block,
                              &scales[column / kBlockItems<S>][block]);
  }
}

}  // namespace
}  // namespace narrowfloat::cuda
