// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat {

/// Bytes of a cache line.
inline constexpr std::size_t kLineBytes = 64;
/// Returns the number of bytes from `at` to the next start of a line; 0 if `at` is one.
inline std::size_t BytesToLine(const std::byte* at) {
  return (0 - reinterpret_cast<std::uintptr_t>(at)) % kLineBytes;
}

/// Returns BytesToLine(at) for runs of bytes at `at`, at + stride, ...; 0 if they differ in it.
inline std::size_t BytesToLine(const std::byte* at, std::ptrdiff_t stride) {
  return stride % static_cast<std::ptrdiff_t>(kLineBytes) == 0 ? BytesToLine(at) : 0;
}

/// Rows of a tile with transposed codes, and bytes of one contiguous output run (4 cache lines).
/// Non-temporal stores of 2 adjacent lines at a time were measured at half the bandwidth of 4.
inline constexpr std::size_t kTransposedRun = 256;
/// Columns of a patch of transposed codes, so that a patch fits in the first-level cache.
inline constexpr std::size_t kTransposedCols = 128;

/// Returns true if one pass for both directions is faster than two passes. Codes of 4 bits, and
/// blocks of one row with transposed columnwise codes, take more time to encode than to read. Tiles
/// for both directions are tall and narrow; for these schemes, they slow down the rowwise direction
/// by more than a second reading costs.
constexpr bool JoinsDirections(BlockShape block, int element_bits, bool columnwise_transposed) {
  const bool has_row_blocks = block != kWholeTensor && block.rows == 1;
  return element_bits == 8 && !(has_row_blocks && columnwise_transposed);
}

/// Returns the bytes of one stored scale_inv item.
constexpr std::size_t ScaleBytes(ScaleType type) {
  return type == ScaleType::kFloat32 ? 4 : 1;
}
template <Scheme S>
inline constexpr std::size_t kScaleBytes = ScaleBytes(S::kLayout.scale_type);

/// Returns the index of the stored scale line of a line of elements, and the block of a position.
template <Scheme S>
NF_HD constexpr std::size_t ScaleLine(std::size_t line) {
  return WholeTensorScheme<S> ? 0 : line / S::kLayout.lines_per_scale;
}
template <Scheme S>
NF_HD constexpr std::size_t ScaleBlockIndex(std::size_t pos) {
  return WholeTensorScheme<S> ? 0 : pos / S::kBlock.cols;
}

/// Stores the scale_inv of index `item`.
template <Scheme S>
inline void StoreScaleInv(std::byte* base, std::size_t item, std::uint32_t scale_inv) {
  if constexpr (kScaleBytes<S> == 4) {
    std::memcpy(base + item * 4, &scale_inv, 4);
  } else {
    base[item] = static_cast<std::byte>(scale_inv);
  }
}

/// Loads the scale_inv of index `item`.
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

template <FloatFormat F>
inline constexpr std::uint32_t kCodeMask = (1u << kBits<F>)-1u;

/// Returns the code at a position of a line of codes. In a byte with two codes, the first code is
/// in the low bits.
template <FloatFormat F>
inline std::uint32_t LoadCode(const std::byte* line, std::size_t pos) noexcept {
  constexpr std::size_t kPerByte = CodesPerByte(kBits<F>);
  const int shift = static_cast<int>(pos % kPerByte) * kBits<F>;
  return std::to_integer<std::uint32_t>(line[pos / kPerByte]) >> shift & kCodeMask<F>;
}

/// Stores a code at a position of a line of codes; keeps the other codes of the byte.
template <FloatFormat F>
inline void StoreCode(std::byte* line, std::size_t pos, std::uint32_t code) noexcept {
  constexpr std::size_t kPerByte = CodesPerByte(kBits<F>);
  const int shift = static_cast<int>(pos % kPerByte) * kBits<F>;
  std::byte& to = line[pos / kPerByte];
  const auto others = std::to_integer<std::uint32_t>(to) & ~(kCodeMask<F> << shift);
  to = static_cast<std::byte>(others | code << shift);
}

}  // namespace narrowfloat
