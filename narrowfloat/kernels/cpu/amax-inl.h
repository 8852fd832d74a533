// SPDX-License-Identifier: Apache-2.0
// Computes the largest magnitude of a tile. Compiled once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_AMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_AMAX_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_AMAX_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_AMAX_INL_H_
#endif

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/scalar/items.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Returns the largest magnitude pattern of a tile. With kFinite, it is above infinity's pattern if
/// an item is NaN; with kAll, NaN counts as 0.
template <class T, Inputs kInputs>
HWY_INLINE std::uint32_t LargestBits(const MatrixRows<const std::byte>& in, const Tile& tile) {
  using I = std::make_signed_t<BitsOf<T> >;
  const hn::ScalableTag<I> di;
  constexpr std::size_t kRowsPerPass = 4;
  const std::size_t bytes = hn::Lanes(di) * sizeof(I);
  const std::size_t row_bytes = (tile.col_end - tile.col_begin) * sizeof(I);
  auto a = hn::Zero(di), b = a, c = a, d = a;
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* row = in.Row(r) + tile.col_begin * sizeof(I);
    const auto magnitudes = [&](std::size_t at) NF_INLINE_ATTR {
      return Magnitudes<T, kInputs>(di, LoadItems(di, row + at));
    };
    std::size_t i = 0;
    for (; i + kRowsPerPass * bytes <= row_bytes; i += kRowsPerPass * bytes) {
      a = hn::Max(a, magnitudes(i));
      b = hn::Max(b, magnitudes(i + bytes));
      c = hn::Max(c, magnitudes(i + 2 * bytes));
      d = hn::Max(d, magnitudes(i + 3 * bytes));
    }
    for (; i + bytes <= row_bytes; i += bytes) a = hn::Max(a, magnitudes(i));
    if (i == row_bytes) continue;
    ZeroPadded<T, HWY_MAX_BYTES / sizeof(I)> tail;
    tail.Fill(row + i, (row_bytes - i) / sizeof(I));
    b = hn::Max(b, Magnitudes<T, kInputs>(di, LoadItems(di, tail.items)));
  }
  return LargestLane(di, hn::Max(hn::Max(a, b), hn::Max(c, d)));
}

template <class T>
struct AmaxTile {
  static float Run(const MatrixRows<const std::byte>& in, const Tile& tile) noexcept {
    const std::uint32_t largest = LargestBits<T, Inputs::kFinite>(in, tile);
    if (largest <= kInfinityBits<T>) return MagnitudeValue<T>(largest);
    return MagnitudeValue<T>(LargestBits<T, Inputs::kAll>(in, tile));
  }
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
