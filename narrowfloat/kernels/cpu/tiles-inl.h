// SPDX-License-Identifier: Apache-2.0
// Stores the scales of square blocks. Compiled once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_TILES_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_TILES_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_TILES_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {

/// Stores the scale of one square block for every line that it covers.
template <class S, Direction kDirection>
HWY_INLINE void StoreTileScale(const DirectionBuffers<std::byte>& out, const Rect& square,
                               std::uint32_t scale_inv) {
  constexpr bool kRowwise = kDirection == Direction::kRowwise;
  const std::size_t line = kRowwise ? square.row : square.col;
  const std::size_t lines = kRowwise ? square.rows : square.cols;
  const std::size_t block =
      out.strides.BlockOffset(ScaleBlockIndex<S>(kRowwise ? square.col : square.row));
  for (std::size_t i = 0; i < lines; i += S::kLayout.lines_per_scale) {
    StoreScaleInv<S>(out.scale_inv, out.strides.LineOffset(ScaleLine<S>(line + i)) + block,
                     scale_inv);
  }
}

template <class S, class T, Direction kDirection>
HWY_INLINE void StoreBatchScales(const DirectionBuffers<std::byte>& out, const Rect& covered,
                                 const Batch<S, T>& batch) {
  for (std::size_t i = 0; i < covered.cols; i += S::kBlock.cols) {
    const Rect square{covered.row, covered.rows, covered.col + i,
                      std::min(S::kBlock.cols, covered.cols - i)};
    StoreTileScale<S, kDirection>(out, square, batch.scale_inv[i / S::kBlock.cols]);
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
