// SPDX-License-Identifier: Apache-2.0
// Transposing bytes in registers. Compiled once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_TRANSPOSE_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_TRANSPOSE_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_TRANSPOSE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kSide =
    16;  // bytes of a 128-bit vector: the square transposed in registers
inline constexpr std::size_t kPatch = 64;  // codes of 64x64 items are made in the first-level cache

using Square = hn::Vec<hn::FixedTag<std::uint8_t, kSide> >[kSide];

/// Interleaves row i with row i + 8, which moves every byte one bit of its index on its way.
HWY_INLINE void Interleave(const Square& in, Square& out) {
  const hn::FixedTag<std::uint8_t, kSide> d;
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kSide / 2; ++i) {
    out[2 * i] = hn::InterleaveLower(d, in[i], in[i + kSide / 2]);
    out[2 * i + 1] = hn::InterleaveUpper(d, in[i], in[i + kSide / 2]);
  }
}

/// Transposes 16 rows of 16 bytes: 4 bits of index, 4 rounds, 64 ops.
HWY_INLINE void TransposeSquare(const std::uint8_t* in, std::size_t in_stride, std::uint8_t* out,
                                std::size_t out_stride) {
  const hn::FixedTag<std::uint8_t, kSide> d;
  Square a, b;
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kSide; ++i) a[i] = hn::LoadU(d, in + i * in_stride);
  Interleave(a, b);
  Interleave(b, a);
  Interleave(a, b);
  Interleave(b, a);
#pragma GCC unroll 16
  for (std::size_t i = 0; i < kSide; ++i) hn::StoreU(a[i], d, out + i * out_stride);
}

/// Writes the transpose of a patch of rows x cols codes, `in_stride` apart. Rows and columns beyond
/// those are read up to the next multiple of kSide, and their values do not matter. Columns are
/// gathered in a buffer first and written once, as whole lines: rows of the output are often a
/// power of two apart and share a cache set.
HWY_INLINE void TransposePatch(const std::uint8_t* in, std::size_t in_stride, std::size_t rows,
                               std::size_t cols, std::byte* out, std::size_t out_stride) {
  alignas(64) std::uint8_t columns[kSide * kPatch];
  for (std::size_t c = 0; c < cols; c += kSide) {
    for (std::size_t r = 0; r < rows; r += kSide) {
      TransposeSquare(in + r * in_stride + c, in_stride, columns + r, kPatch);
    }
    for (std::size_t i = 0; i < std::min(kSide, cols - c); ++i) {
      std::byte* line = out + (c + i) * out_stride;
      if (rows == kPatch) {
        std::memcpy(line, columns + i * kPatch, kPatch);  // of constant size, a few stores
      } else {
        std::memcpy(line, columns + i * kPatch, rows);
      }
    }
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
