// SPDX-License-Identifier: Apache-2.0
// Blocks of one column, columnwise, where codes keep the input's orientation, alone and beside
// rowwise blocks. Lanes are columns. The tile that a call works on stays in the second-level cache,
// so that both directions read memory once.
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/quantize_columns.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

QuantizeSlots Table() {
  return {};
}

#else

using D8 = hn::ScalableTag<std::uint8_t>;
using DF = hn::Repartition<float, D8>;
constexpr std::size_t kMaxLanes =
    HWY_MAX_BYTES;  // columns of a strip: the codes that one vector holds

/// Amaxes and scales of a strip, in the order that EncodeRun takes its lanes: fp32 items in memory
/// order; of 16-bit items, for each vector of them, first those at even places, then those at odd
/// ones.
struct Strip {
  alignas(64) float amax[kMaxLanes];
  alignas(64) float scale[kMaxLanes];
  std::uint32_t scale_inv[kMaxLanes];
};

/// Where EncodeRun's order has column `col` of the strip.
template <class T>
HWY_INLINE std::size_t LaneOf(std::size_t col) {
  if constexpr (kItemSize<T> == 4) {
    return col;
  } else {
    const std::size_t items = hn::Lanes(hn::Repartition<std::uint16_t, D8>());
    const std::size_t within = col % items;
    return col - within + within % 2 * (items / 2) + within / 2;
  }
}

template <class T, class DI>
HWY_INLINE void StoreAmaxes(DI di, hn::Vec<DI> magnitudes, float* amax) {
  const DF df;
  const hn::RebindToUnsigned<DF> d32;
  if constexpr (kItemSize<T> == 4) {
    hn::StoreU(hn::BitCast(df, magnitudes), df, amax);
  } else {
    const auto pairs = hn::BitCast(d32, magnitudes);
    hn::StoreU(WidenEven<T>(d32, pairs), df, amax);
    hn::StoreU(WidenOdd<T>(d32, pairs), df, amax + hn::Lanes(df));
  }
  (void)di;
}

/// One block for each of Lanes(D8) columns: `rows` items at `in`, one a row.
template <class S, class T>
HWY_INLINE void QuantizeStrip(const std::byte* const* in, std::size_t rows,
                              const typename S::TensorState& state, Strip& strip,
                              std::byte* const* out) {
  using F = typename S::Element;
  const hn::Repartition<std::make_signed_t<BitsOf<T> >, D8> di;
  const std::size_t items = hn::Lanes(di), lanes = hn::Lanes(D8());
  for (std::size_t i = 0; i < lanes; i += items) {
    auto largest = hn::Zero(di);
    for (std::size_t r = 0; r < rows; ++r) {
      largest = hn::Max(largest, NumberMagnitudes<T>(di, LoadItems(di, in[r] + i * kItemSize<T>)));
    }
    StoreAmaxes<T>(di, largest, strip.amax + i);
  }
  for (std::size_t i = 0; i < lanes; ++i) {  // vectorized by the compiler
    const BlockScale decided = S::ScaleBlock(strip.amax[i], state);
    strip.scale[i] = decided.scale;
    strip.scale_inv[i] = decided.scale_inv;
  }
  const LaneScales<DF> scales{strip.scale};
  for (std::size_t r = 0; r < rows; ++r) {
    hn::StoreU(EncodeRun<F, T>(D8(), in[r], scales), D8(), reinterpret_cast<std::uint8_t*>(out[r]));
  }
}

/// The same for fewer columns than a vector holds.
template <class S, class T>
HWY_NOINLINE void QuantizeNarrow(const std::byte* const* in, std::size_t rows, std::size_t cols,
                                 const typename S::TensorState& state, Strip& strip,
                                 std::byte* const* out) {
  constexpr std::size_t kRows = S::kBlock.cols;
  Padded<T, kMaxLanes> padded[kRows];
  std::byte codes[kRows][kMaxLanes];
  const std::byte* staged_in[kRows];
  std::byte* staged_out[kRows];
  for (std::size_t r = 0; r < rows; ++r) {
    padded[r].Fill(in[r], cols);
    staged_in[r] = padded[r].items;
    staged_out[r] = codes[r];
  }
  QuantizeStrip<S, T>(staged_in, rows, state, strip, staged_out);
  for (std::size_t r = 0; r < rows; ++r) std::memcpy(out[r], codes[r], cols);
}

template <class S, class T>
struct QuantizeColumns {
  static void Run(const QuantizeArgs& args) noexcept {
    constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block
    const DirectionBuffers<std::byte>& out = args.columnwise;
    const typename S::TensorState state = S::Prepare(args.amax, args.options);
    const Tile& tile = args.tile;
    const std::size_t lanes = hn::Lanes(D8());
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      const std::size_t rows = std::min(kRows, tile.row_end - row);
      const std::size_t block = out.strides.BlockOffset(ScaleBlockIndex<S>(row));
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += lanes) {
        const std::size_t cols = std::min(lanes, tile.col_end - col);
        const std::byte* in[kRows];
        std::byte* codes[kRows];
        for (std::size_t r = 0; r < rows; ++r) {
          in[r] = args.in.Row(row + r) + col * kItemSize<T>;
          codes[r] = out.codes + (row + r) * out.code_stride + col;
        }
        Strip strip;
        if (cols == lanes) {
          QuantizeStrip<S, T>(in, rows, state, strip, codes);
        } else {
          QuantizeNarrow<S, T>(in, rows, cols, state, strip, codes);
        }
        for (std::size_t i = 0; i < cols; ++i) {
          StoreScaleInv<S>(out.scale_inv, out.strides.LineOffset(ScaleLine<S>(col + i)) + block,
                           strip.scale_inv[LaneOf<T>(i)]);
        }
      }
    }
  }
};

template <class S, class T>
struct QuantizeBoth {
  static void Run(const QuantizeArgs& args) noexcept {
    QuantizeRows<S, T>::Run(args);
    QuantizeColumns<S, T>::Run(args);
  }
};

template <class S, template <class, class> class Kernel, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (RowBlockScheme<S> && !S::kLayout.columnwise_transposed) {
    return {&Kernel<S, T>::Run...};
  } else {
    return {};
  }
}

template <class... S>
constexpr QuantizeSlots MakeTable(TypeList<S...>) {
  return {
      {{{{}, Types<S, QuantizeColumns>(FloatTypes{}), Types<S, QuantizeBoth>(FloatTypes{})}}...}};
}

QuantizeSlots Table() {
  return MakeTable(AllSchemes{});
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(Table);
namespace cpu {
QuantizeSlots QuantizeColumnsTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
