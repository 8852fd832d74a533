// SPDX-License-Identifier: Apache-2.0
// Transposes bytes in registers. Compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

// Side of the squares that are transposed in registers, one square per 128-bit block of a vector:
// a block holds one row of 16 bytes.
inline constexpr std::size_t kSquareSide = 16;

/// Calls next(...) with the interleaved rows a[i] and b[i], for each i: from 16 rows of squares,
/// rows i and i + kSquareSide / 2 become rows 2 * i and 2 * i + 1. This rotates the index bits
/// (row, column) of every byte by one. SVE's vectors cannot be in arrays.
template <class D, class Next, class V>
HWY_INLINE void Interleave(D d, const Next& next, V a0, V a1, V a2, V a3, V a4, V a5, V a6, V a7,
                           V b0, V b1, V b2, V b3, V b4, V b5, V b6, V b7) {
  next(hn::InterleaveLower(d, a0, b0), hn::InterleaveUpper(d, a0, b0),
       hn::InterleaveLower(d, a1, b1), hn::InterleaveUpper(d, a1, b1),
       hn::InterleaveLower(d, a2, b2), hn::InterleaveUpper(d, a2, b2),
       hn::InterleaveLower(d, a3, b3), hn::InterleaveUpper(d, a3, b3),
       hn::InterleaveLower(d, a4, b4), hn::InterleaveUpper(d, a4, b4),
       hn::InterleaveLower(d, a5, b5), hn::InterleaveUpper(d, a5, b5),
       hn::InterleaveLower(d, a6, b6), hn::InterleaveUpper(d, a6, b6),
       hn::InterleaveLower(d, a7, b7), hn::InterleaveUpper(d, a7, b7));
}

/// Transposes kSquareSide columns of as many rows as a vector has bytes. Four calls of Interleave
/// exchange the bits of row and column. 64 ops.
HWY_INLINE void TransposeSquares(const std::uint8_t* in, std::size_t in_stride, std::uint8_t* out,
                                 std::size_t out_stride) {
  const D8 d;
  const auto store = [&](auto... rows)
                         NF_INLINE_ATTR { ((hn::StoreU(rows, d, out), out += out_stride), ...); };
  const auto last = [&](auto... rows) NF_INLINE_ATTR { Interleave(d, store, rows...); };
  const auto third = [&](auto... rows) NF_INLINE_ATTR { Interleave(d, last, rows...); };
  const auto second = [&](auto... rows) NF_INLINE_ATTR { Interleave(d, third, rows...); };
  const auto row_of_squares = [&](const std::uint8_t* at) NF_INLINE_ATTR {
    return JoinParts<kSquareSide>(d, 0, [&](auto block, std::size_t row) NF_INLINE_ATTR {
      return hn::LoadU(block, at + row * in_stride);
    });
  };
  [&]<std::size_t... kRows>(std::index_sequence<kRows...>) NF_INLINE_ATTR {
    Interleave(d, second, row_of_squares(in + kRows * in_stride)...);
  }
  (std::make_index_sequence<kSquareSide>());
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
