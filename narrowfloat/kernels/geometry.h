// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat {

/// Rows of a tile with transposed codes, and bytes of one contiguous output run (4 cache lines).
/// Non-temporal stores of 2 adjacent lines at a time were measured at half the bandwidth of 4.
inline constexpr std::size_t kTransposedRun = 256;

/// Bytes of one stored scale_inv item.
template <Scheme S>
inline constexpr std::size_t kScaleBytes = S::kLayout.scale_type == ScaleType::kFloat32 ? 4 : 1;

/// Returns the stored scale line of a line of elements, and the block of a position in the line.
template <Scheme S>
constexpr std::size_t ScaleLine(std::size_t line) {
  return WholeTensorScheme<S> ? 0 : line / S::kLayout.lines_per_scale;
}
template <Scheme S>
constexpr std::size_t ScaleBlockIndex(std::size_t pos) {
  return WholeTensorScheme<S> ? 0 : pos / S::kBlock.cols;
}

template <Scheme S>
inline void StoreScaleInv(std::byte* base, std::size_t item, std::uint32_t scale_inv) {
  if constexpr (kScaleBytes<S> == 4) {
    std::memcpy(base + item * 4, &scale_inv, 4);
  } else {
    base[item] = static_cast<std::byte>(scale_inv);
  }
}

/// Stores `count` adjacent scale_inv items from `item` on.
/// Requires: the buffers do not overlap. Bytes may alias any type; __restrict lets the compiler
/// vectorize the loop.
template <Scheme S>
inline void StoreScaleInvs(std::byte* __restrict base, std::size_t item,
                           const std::uint32_t* __restrict scale_inv, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) StoreScaleInv<S>(base, item + i, scale_inv[i]);
}

template <Scheme S>
inline std::uint32_t LoadScaleInv(const std::byte* base, std::size_t item) {
  if constexpr (kScaleBytes<S> == 4) {
    std::uint32_t scale_inv;
    std::memcpy(&scale_inv, base + item * 4, 4);
    return scale_inv;
  } else {
    return static_cast<std::uint32_t>(base[item]);
  }
}

/// A rectangle of a matrix: a block, strip or patch.
struct Rect {
  std::size_t row, rows, col, cols;
};

/// A kernel's work in one direction: lines, and positions along a line.
struct LineRange {
  std::size_t line_begin, line_end, pos_begin, pos_end;
};

template <Direction kDirection>
constexpr LineRange LinesOf(const Tile& tile) {
  if constexpr (kDirection == Direction::kRowwise) {
    return {tile.row_begin, tile.row_end, tile.col_begin, tile.col_end};
  } else {
    return {tile.col_begin, tile.col_end, tile.row_begin, tile.row_end};
  }
}

/// Codes in one byte, the first one in its lowest bits.
template <Scheme S>
inline constexpr std::size_t kCodesPerByte = 8 / kBits<typename S::Element>;

/// Position of a code: columnwise codes may be transposed, narrow codes share a byte.
struct CodePlace {
  std::size_t offset;
  int shift;
};
template <Scheme S, Direction kDirection>
constexpr CodePlace CodePlaceOf(std::size_t code_stride, std::size_t row, std::size_t col) {
  constexpr bool kTransposed =
      kDirection == Direction::kColumnwise && S::kLayout.columnwise_transposed;
  const std::size_t line = kTransposed ? col : row, pos = kTransposed ? row : col;
  return {line * code_stride + pos / kCodesPerByte<S>,
          static_cast<int>(pos % kCodesPerByte<S>) * kBits<typename S::Element>};
}

template <Scheme S, Direction kDirection>
inline void StoreCode(const DirectionBuffers<std::byte>& out, std::size_t row, std::size_t col,
                      std::uint32_t code) {
  const CodePlace place = CodePlaceOf<S, kDirection>(out.code_stride, row, col);
  constexpr std::uint32_t kMask = (1u << kBits<typename S::Element>)-1u;
  const auto others =
      std::to_integer<std::uint32_t>(out.codes[place.offset]) & ~(kMask << place.shift);
  out.codes[place.offset] = static_cast<std::byte>(others | code << place.shift);
}
template <Scheme S, Direction kDirection>
inline std::uint32_t LoadCode(const DirectionBuffers<const std::byte>& in, std::size_t row,
                              std::size_t col) {
  const CodePlace place = CodePlaceOf<S, kDirection>(in.code_stride, row, col);
  constexpr std::uint32_t kMask = (1u << kBits<typename S::Element>)-1u;
  return std::to_integer<std::uint32_t>(in.codes[place.offset]) >> place.shift & kMask;
}

}  // namespace narrowfloat
