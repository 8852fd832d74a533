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
constexpr std::size_t kMaxLanes = HWY_MAX_BYTES;
constexpr std::size_t kStripCols = 512;  // columns of a panel whose amaxes and scales stay in L1

/// Amaxes and scales of a strip of columns, in the order that EncodeRun takes its lanes: fp32 items
/// in memory order; of 16-bit items, for each vector of them, first those at even places, then
/// those at odd ones. `magnitude` holds patterns in memory order.
template <class T>
struct Strip {
  alignas(64) std::make_signed_t<BitsOf<T> > magnitude[kStripCols];
  alignas(64) float amax[kStripCols];
  alignas(64) float scale[kStripCols];
  std::uint32_t scale_inv[kStripCols];
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

/// Values of the magnitudes of one vector, in EncodeRun's order.
template <class T, class DI>
HWY_INLINE void StoreAmaxes(DI /*di*/, hn::Vec<DI> magnitudes, float* amax) {
  const DF df;
  const hn::RebindToUnsigned<DF> d32;
  if constexpr (kItemSize<T> == 4) {
    hn::StoreU(hn::BitCast(df, magnitudes), df, amax);
  } else {
    const auto pairs = hn::BitCast(d32, magnitudes);
    hn::StoreU(WidenEven<T>(d32, pairs), df, amax);
    hn::StoreU(WidenOdd<T>(d32, pairs), df, amax + hn::Lanes(df));
  }
}

/// Rows of a strip: `cols` items each, a multiple of the vector's length.
template <std::size_t kRows, class Byte>
struct StripRows {
  Byte* row[kRows];
  std::size_t count;
};

/// Goes along rows, a few at a time, as the caches like it; the amaxes of the columns wait in L1.
template <class T, std::size_t kRows>
HWY_INLINE void MeasureStrip(const StripRows<kRows, const std::byte>& in, std::size_t cols,
                             Strip<T>& strip) {
  constexpr std::size_t kTogether = 4;
  const hn::Repartition<std::make_signed_t<BitsOf<T> >, D8> di;
  const std::size_t items = hn::Lanes(di);
  for (std::size_t c = 0; c < cols; c += items) hn::Store(hn::Zero(di), di, strip.magnitude + c);
  for (std::size_t r = 0; r < in.count; r += kTogether) {
    const std::size_t together = std::min(kTogether, in.count - r);
    for (std::size_t c = 0; c < cols; c += items) {
      auto largest = hn::Load(di, strip.magnitude + c);
      for (std::size_t i = 0; i < together; ++i) {
        const auto magnitude =
            NumberMagnitudes<T>(di, LoadItems(di, in.row[r + i] + c * kItemSize<T>));
        largest = hn::Max(largest, magnitude);
      }
      hn::Store(largest, di, strip.magnitude + c);
    }
  }
}

/// One block for each of `cols` columns.
template <class S, class T>
HWY_INLINE void QuantizeStrip(const StripRows<S::kBlock.cols, const std::byte>& in,
                              std::size_t cols, const typename S::TensorState& state,
                              Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out) {
  using F = typename S::Element;
  const hn::Repartition<std::make_signed_t<BitsOf<T> >, D8> di;
  const std::size_t items = hn::Lanes(di), lanes = hn::Lanes(D8());
  MeasureStrip<T>(in, cols, strip);
  for (std::size_t c = 0; c < cols; c += items) {
    StoreAmaxes<T>(di, hn::Load(di, strip.magnitude + c), strip.amax + c);
  }
  for (std::size_t c = 0; c < cols; ++c) {  // vectorized by the compiler
    const BlockScale decided = S::ScaleBlock(strip.amax[c], state);
    strip.scale[c] = decided.scale;
    strip.scale_inv[c] = decided.scale_inv;
  }
  for (std::size_t r = 0; r < in.count; ++r) {
    auto* codes = reinterpret_cast<std::uint8_t*>(out.row[r]);
    for (std::size_t c = 0; c < cols; c += lanes) {
      const LaneScales<DF> scales{strip.scale + c};
      hn::StoreU(EncodeRun<F, T>(D8(), in.row[r] + c * kItemSize<T>, scales), D8(), codes + c);
    }
  }
}

/// The same for fewer columns than a vector holds.
template <class S, class T>
HWY_NOINLINE void QuantizeNarrow(const StripRows<S::kBlock.cols, const std::byte>& in,
                                 std::size_t cols, const typename S::TensorState& state,
                                 Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out) {
  constexpr std::size_t kRows = S::kBlock.cols;
  Padded<T, kMaxLanes> padded[kRows];
  std::byte codes[kRows][kMaxLanes];
  StripRows<kRows, const std::byte> staged_in;
  StripRows<kRows, std::byte> staged_out;
  staged_in.count = staged_out.count = in.count;
  for (std::size_t r = 0; r < in.count; ++r) {
    padded[r].Fill(in.row[r], cols);
    staged_in.row[r] = padded[r].items;
    staged_out.row[r] = codes[r];
  }
  QuantizeStrip<S, T>(staged_in, hn::Lanes(D8()), state, strip, staged_out);
  for (std::size_t r = 0; r < in.count; ++r) std::memcpy(out.row[r], codes[r], cols);
}

template <class S, class T>
struct QuantizeColumns {
  static constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block

  static void Run(const QuantizeArgs& args) noexcept {
    const DirectionBuffers<std::byte>& out = args.columnwise;
    const typename S::TensorState state = S::Prepare(args.amax, args.options);
    const Tile& tile = args.tile;
    const std::size_t lanes = hn::Lanes(D8());
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      const std::size_t rows = std::min(kRows, tile.row_end - row);
      const std::size_t block = out.strides.BlockOffset(ScaleBlockIndex<S>(row));
      for (std::size_t col = tile.col_begin; col < tile.col_end;) {
        const std::size_t left = tile.col_end - col;
        const std::size_t cols = left < lanes ? left : std::min(kStripCols, left / lanes * lanes);
        StripRows<kRows, const std::byte> in;
        StripRows<kRows, std::byte> codes;
        in.count = codes.count = rows;
        for (std::size_t r = 0; r < rows; ++r) {
          in.row[r] = args.in.Row(row + r) + col * kItemSize<T>;
          codes.row[r] = out.codes + (row + r) * out.code_stride + col;
        }
        Strip<T> strip;
        if (cols >= lanes) {
          QuantizeStrip<S, T>(in, cols, state, strip, codes);
        } else {
          QuantizeNarrow<S, T>(in, cols, state, strip, codes);
        }
        for (std::size_t i = 0; i < cols; ++i) {
          StoreScaleInv<S>(out.scale_inv, out.strides.LineOffset(ScaleLine<S>(col + i)) + block,
                           strip.scale_inv[LaneOf<T>(i)]);
        }
        col += cols;
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
