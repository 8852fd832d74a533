// SPDX-License-Identifier: Apache-2.0
// Quantizes blocks of one column (32x1) that lie side by side: lanes are columns. Compiled once per
// instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_STRIPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_STRIPS_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_STRIPS_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_STRIPS_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kMaxLanes = HWY_MAX_BYTES;

/// Copies the values of columns from memory order to LaneScales' order. fp32 items: the same order.
/// 16-bit items: for each vector, the even columns first, then the odd ones.
template <class T>
HWY_INLINE void CopyToLanes(const float* values, std::size_t cols, float* lanes) {
  if constexpr (kItemSize<T> == 4) {
    std::copy_n(values, cols, lanes);
  } else {
    constexpr std::size_t kHalf = hn::MaxLanes(hn::Repartition<std::uint16_t, D8>()) / 2;
    for (std::size_t c = 0; c < cols; c += 2 * kHalf) {
      for (std::size_t i = 0; i < kHalf; ++i) {
        lanes[c + i] = values[c + 2 * i];
        lanes[c + kHalf + i] = values[c + 2 * i + 1];
      }
    }
  }
}

/// Amaxes and scales of a strip's column blocks. `scale` and `multiplier` are in LaneScales' order.
template <class T>
struct Strip {
  alignas(64) std::make_signed_t<BitsOf<T> > magnitude[kBatchCols];
  alignas(64) float scale[kBatchCols];
  alignas(64) float multiplier[kBatchCols];    // and floor: PowerOfTwoScale's, if `powers_of_two`
  alignas(64) FloorBits<T> floor[kBatchCols];  // of bfloat16 in memory order
  alignas(64) std::uint32_t scale_inv[kBatchCols];  // in memory order
  bool powers_of_two = false;

  template <class S>
  HWY_INLINE void ComputeScales(std::size_t cols, typename S::TensorState state);

  HWY_INLINE LaneScales<DF> Scales(std::size_t col) const { return {scale + col}; }
  HWY_INLINE LanePowersOfTwo<T, DF> PowersOfTwo(std::size_t col) const {
    return {floor + col, multiplier + col};
  }
};

/// Computes the scales of `cols` columns, by loops that the compiler vectorizes.
template <class T>
template <class S>
HWY_INLINE void Strip<T>::ComputeScales(std::size_t cols, typename S::TensorState state) {
  using PowerOfTwo = PowerOfTwoScale<typename S::Element, T>;
  alignas(64) float amax[kBatchCols], scale_of[kBatchCols];  // in memory order
  for (std::size_t c = 0; c < cols; ++c) {
    amax[c] = MagnitudeValue<T>(static_cast<BitsOf<T> >(magnitude[c]));
  }
  for (std::size_t c = 0; c < cols; ++c) {
    const BlockScale computed = S::ScaleBlock(amax[c], state);
    scale_of[c] = computed.scale;
    scale_inv[c] = computed.scale_inv;
  }
  CopyToLanes<T>(scale_of, cols, scale);
  std::uint32_t slow = 0;
  for (std::size_t c = 0; c < cols; ++c) {
    slow |= PowerOfTwo::NeedsSlowPath(scale_of[c], amax[c]);
  }
  powers_of_two = slow >> 31 == 0;
  for (std::size_t c = 0; c < cols; ++c) {
    const float of = std::is_same_v<T, BFloat16> ? scale_of[c] : scale[c];
    floor[c] = static_cast<FloorBits<T> >(PowerOfTwo::Floor(of));
  }
  if constexpr (kByTable<typename S::Element, T>) return;
  for (std::size_t c = 0; c < cols; ++c) multiplier[c] = PowerOfTwo::Multiplier(scale[c]);
}

/// Encodes one block for each of `cols` columns and prefetches in.next. Requires: `strip` holds the
/// scales; `cols` is a multiple of the vector's length.
template <class S, class T, Inputs kInputs, bool kPowersOfTwo>
HWY_INLINE void EncodeStrip(const StripRows<S::kBlock.cols, const std::byte>& in, std::size_t cols,
                            const Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out,
                            StagedWriter<kBatchCols>& writer) {
  using F = typename S::Element;
  const D8 d8;
  for (std::size_t r = 0; r < in.count; ++r) {
    const VectorWriter codes = writer.Open(d8, out.row[r]);
    for (std::size_t c = 0; c < cols; c += hn::Lanes(d8)) {
      const std::byte* items = in.row[r] + c * kItemSize<T>;
      if (in.next[r] != nullptr)
        PrefetchBytes(in.next[r] + c * kItemSize<T>, hn::Lanes(d8) * kItemSize<T>);
      if constexpr (kPowersOfTwo) {
        codes.Put(d8, EncodeRun<F, T, kInputs>(d8, items, strip.PowersOfTwo(c)), c);
      } else {
        codes.Put(d8, EncodeRun<F, T, kInputs>(d8, items, strip.Scales(c)), c);
      }
    }
    writer.Close(codes, out.row[r], cols);
  }
}

/// Quantizes one block for each of `cols` columns. A block's scale keeps its finite items within
/// the format, so only infinities and NaN need Inputs::kAll.
template <class S, class T>
HWY_INLINE void QuantizeStrip(const StripRows<S::kBlock.cols, const std::byte>& in,
                              std::size_t cols, const typename S::TensorState& state,
                              Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out,
                              StagedWriter<kBatchCols>& writer) {
  const bool finite =
      ColumnMaxima<T, Inputs::kFinite>(in.row, in.count, cols, strip.magnitude) < kInfinityBits<T>;
  if (!finite) ColumnMaxima<T, Inputs::kAll>(in.row, in.count, cols, strip.magnitude);
  strip.template ComputeScales<S>(cols, state);
  if (finite && strip.powers_of_two) {
    return EncodeStrip<S, T, Inputs::kFinite, true>(in, cols, strip, out, writer);
  }
  if (finite) return EncodeStrip<S, T, Inputs::kFinite, false>(in, cols, strip, out, writer);
  EncodeStrip<S, T, Inputs::kAll, false>(in, cols, strip, out, writer);
}

/// Does the same for fewer columns than a vector has lanes.
template <class S, class T>
HWY_NOINLINE void QuantizeNarrow(const StripRows<S::kBlock.cols, const std::byte>& in,
                                 std::size_t cols, const typename S::TensorState& state,
                                 Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out) {
  constexpr std::size_t kRows = S::kBlock.cols;
  ZeroPadded<T, kMaxLanes> padded[kRows];
  std::byte codes[kRows][kMaxLanes];
  StripRows<kRows, const std::byte> staged_in{};
  StripRows<kRows, std::byte> staged_out{};
  staged_in.count = staged_out.count = in.count;
  for (std::size_t r = 0; r < in.count; ++r) {
    padded[r].Fill(in.row[r], cols);
    staged_in.row[r] = padded[r].items;
    staged_out.row[r] = codes[r];
  }
  StagedWriter<kBatchCols> in_place(false);
  QuantizeStrip<S, T>(staged_in, hn::Lanes(D8()), state, strip, staged_out, in_place);
  for (std::size_t r = 0; r < in.count; ++r) std::memcpy(out.row[r], codes[r], cols);
}

template <class S, class T>
HWY_INLINE void StoreStrip(const DirectionBuffers<std::byte>& out, std::size_t block,
                           std::size_t col, std::size_t cols, const Strip<T>& strip) {
  if (S::kLayout.lines_per_scale == 1 && out.strides.LinesAreAdjacent()) {
    return StoreScaleInvs<S>(out.scale_inv, col + block, strip.scale_inv, cols);
  }
  for (std::size_t i = 0; i < cols; ++i) {
    const std::size_t line = out.strides.LineOffset(ScaleLine<S>(col + i));
    StoreScaleInv<S>(out.scale_inv, line + block, strip.scale_inv[i]);
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
