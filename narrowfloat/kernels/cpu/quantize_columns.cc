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

constexpr std::size_t kMaxLanes = HWY_MAX_BYTES;
constexpr std::size_t kStripCols = 1024;  // columns of a panel whose scales stay in L1

/// Copies values of columns from memory order into the order in which EncodeRun takes them: fp32
/// items as they are; of 16-bit items, for each vector of them, first those at even places, then
/// those at odd ones.
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

/// Amaxes and scales of a strip of columns, in memory order but for those that EncodeRun takes.
template <class T>
struct Strip {
  alignas(64) std::make_signed_t<BitsOf<T> > magnitude[kStripCols];
  alignas(64) float scale[kStripCols];
  alignas(64) float multiplier[kStripCols];         // and floor: PowerScale's, if `powers`
  alignas(64) std::uint16_t floor[kStripCols];      // in memory order
  alignas(64) std::uint32_t scale_inv[kStripCols];  // in memory order
  bool powers = false;

  template <class S>
  HWY_INLINE void Decide(std::size_t cols, const typename S::TensorState& state);

  HWY_INLINE LaneScales<DF> Scales(std::size_t col) const { return {scale + col}; }
  HWY_INLINE LanePowers<DF> Powers(std::size_t col) const {
    return {floor + col, multiplier + col};
  }
};

/// Loops that the compiler vectorizes.
template <class T>
template <class S>
HWY_INLINE void Strip<T>::Decide(std::size_t cols, const typename S::TensorState& state) {
  using Power = PowerScale<typename S::Element>;
  alignas(64) float scale_of[kStripCols];  // in memory order
  for (std::size_t c = 0; c < cols; ++c) {
    const auto bits = static_cast<BitsOf<T> >(magnitude[c]);
    const BlockScale decided = S::ScaleBlock(MagnitudeValue<T>(bits), state);
    scale_of[c] = decided.scale;
    scale_inv[c] = decided.scale_inv;
  }
  CopyToLanes<T>(scale_of, cols, scale);
  if constexpr (kMayBePowers<S, T>) {
    std::uint32_t misfit = 0;
    for (std::size_t c = 0; c < cols; ++c) {
      misfit |= Power::Misfit(scale_of[c], static_cast<BitsOf<T> >(magnitude[c]));
    }
    powers = misfit == 0;
    for (std::size_t c = 0; c < cols; ++c) {
      floor[c] = static_cast<std::uint16_t>(Power::Floor(scale_of[c]));
    }
    for (std::size_t c = 0; c < cols; ++c) multiplier[c] = Power::Multiplier(scale[c]);
  }
}

/// Rows of a strip: `cols` items each, a multiple of the vector's length.
template <std::size_t kRows, class Byte>
struct StripRows {
  Byte* row[kRows];
  std::size_t count;
  Byte* next[kRows] = {};  // the rows of the strip that comes after it, or null
};

/// One block for each of `cols` columns, measured and decided before. Asks for what comes next.
template <class S, class T, Items kItems, bool kByPower>
HWY_INLINE void EncodeStrip(const StripRows<S::kBlock.cols, const std::byte>& in, std::size_t cols,
                            const Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out,
                            Outlet<kStripCols>& outlet) {
  using F = typename S::Element;
  const D8 d8;
  for (std::size_t r = 0; r < in.count; ++r) {
    if (in.next[r] != nullptr) PrefetchBytes(in.next[r], cols * kItemSize<T>);
    auto* codes = reinterpret_cast<std::uint8_t*>(outlet.Open(out.row[r]));
    for (std::size_t c = 0; c < cols; c += hn::Lanes(d8)) {
      const std::byte* items = in.row[r] + c * kItemSize<T>;
      if constexpr (kByPower) {
        hn::StoreU(EncodeRun<F, T, kItems>(d8, items, strip.Powers(c)), d8, codes + c);
      } else {
        hn::StoreU(EncodeRun<F, T, kItems>(d8, items, strip.Scales(c)), d8, codes + c);
      }
    }
    outlet.Close(out.row[r], cols);
  }
}

/// A block's scale keeps its numbers within the format, so that only infinities and NaN are not
/// ordinary.
template <class S, class T>
HWY_INLINE void QuantizeStrip(const StripRows<S::kBlock.cols, const std::byte>& in,
                              std::size_t cols, const typename S::TensorState& state,
                              Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out,
                              Outlet<kStripCols>& outlet) {
  const bool ordinary =
      FoldRows<T, Items::kOrdinary>(in.row, in.count, cols, strip.magnitude) < kInfinityBits<T>;
  if (!ordinary) FoldRows<T, Items::kAny>(in.row, in.count, cols, strip.magnitude);
  strip.template Decide<S>(cols, state);
  if constexpr (kMayBePowers<S, T>) {
    if (ordinary && strip.powers) {
      return EncodeStrip<S, T, Items::kOrdinary, true>(in, cols, strip, out, outlet);
    }
  }
  if (ordinary) return EncodeStrip<S, T, Items::kOrdinary, false>(in, cols, strip, out, outlet);
  EncodeStrip<S, T, Items::kAny, false>(in, cols, strip, out, outlet);
}

/// The same for fewer columns than a vector holds.
template <class S, class T>
HWY_NOINLINE void QuantizeNarrow(const StripRows<S::kBlock.cols, const std::byte>& in,
                                 std::size_t cols, const typename S::TensorState& state,
                                 Strip<T>& strip, const StripRows<S::kBlock.cols, std::byte>& out) {
  constexpr std::size_t kRows = S::kBlock.cols;
  Padded<T, kMaxLanes> padded[kRows];
  std::byte codes[kRows][kMaxLanes];
  StripRows<kRows, const std::byte> staged_in{};
  StripRows<kRows, std::byte> staged_out{};
  staged_in.count = staged_out.count = in.count;
  for (std::size_t r = 0; r < in.count; ++r) {
    padded[r].Fill(in.row[r], cols);
    staged_in.row[r] = padded[r].items;
    staged_out.row[r] = codes[r];
  }
  Outlet<kStripCols> in_place(false);
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

template <class S, class T>
struct QuantizeColumns {
  static constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block

  static void Run(const QuantizeArgs& args) noexcept {
    const DirectionBuffers<std::byte>& out = args.columnwise;
    const typename S::TensorState state = S::Prepare(args.amax, args.options);
    const Tile& tile = args.tile;
    const std::size_t lanes = hn::Lanes(D8());
    Outlet<kStripCols> outlet(args.stream);
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
          in.next[r] = NextStrip<T>(args, row + r, col + cols, kRows);
          codes.row[r] = out.codes + (row + r) * out.code_stride + col;
        }
        Strip<T> strip;
        if (cols >= lanes) {
          QuantizeStrip<S, T>(in, cols, state, strip, codes, outlet);
        } else {
          QuantizeNarrow<S, T>(in, cols, state, strip, codes);
        }
        StoreStrip<S>(out, block, col, cols, strip);
        col += cols;
      }
    }
  }
};

/// The scales of a row's blocks, from column `col` on, as EncodeRun asks for them.
template <class S, class T>
struct BlockPowers {
  const Batch<S, T>& batch;
  std::size_t col;
  static constexpr std::size_t kItems = hn::MaxLanes(hn::Repartition<std::uint16_t, D8>());
  static_assert(S::kBlock.cols % kItems == 0);

  HWY_INLINE auto Floor(std::size_t i) const {
    return batch.Power(DF(), (col + i * kItems) / S::kBlock.cols).floor;
  }
  HWY_INLINE hn::Vec<DF> Multiplier(std::size_t i) const {
    return batch.Power(DF(), (col + i / 2 * kItems) / S::kBlock.cols).multiplier;
  }
};

/// Both directions at once, where that is possible: what they share of each item is done once.
template <class S, class T>
struct QuantizeBoth {
  static constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block
  static_assert(kStripCols == kBatch * S::kBlock.cols);

  static void Run(const QuantizeArgs& args) noexcept {
    const Tile& tile = args.tile;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kStripCols) {
        QuantizeArgs part = args;
        part.tile = {row, std::min(row + kRows, tile.row_end), col,
                     std::min(col + kStripCols, tile.col_end)};
        if constexpr (kMayBePowers<S, T>) {
          if (RunTogether(part)) continue;
        }
        QuantizeRows<S, T>::Run(part);
        QuantizeColumns<S, T>::Run(part);
      }
    }
  }

  /// A strip of whole blocks, all ordinary and with scales that are applied as powers; false,
  /// before anything is written, if it is not one.
  static HWY_INLINE bool RunTogether(const QuantizeArgs& args) {
    const Tile& tile = args.tile;
    const std::size_t cols = tile.col_end - tile.col_begin;
    if (cols % std::max(hn::Lanes(D8()), S::kBlock.cols) != 0) return false;
    const typename S::TensorState state = S::Prepare(args.amax, args.options);
    StripRows<kRows, const std::byte> in;
    in.count = tile.row_end - tile.row_begin;
    Batch<S, T> batches[kRows];
    for (std::size_t r = 0; r < in.count; ++r) {
      in.row[r] = args.in.Row(tile.row_begin + r) + tile.col_begin * kItemSize<T>;
      in.next[r] = NextStrip<T>(args, tile.row_begin + r, tile.col_end, kRows);
      MeasureBlocks<S, T, Items::kOrdinary>(in.row[r], cols / S::kBlock.cols, batches[r]);
      if (batches[r].Largest() >= kInfinityBits<T>) return false;
      batches[r].Decide(state);
      if (!batches[r].powers) return false;
    }
    Strip<T> strip;
    FoldRows<T, Items::kOrdinary>(in.row, in.count, cols, strip.magnitude);
    strip.template Decide<S>(cols, state);
    if (!strip.powers) return false;

    Outlet<kStripCols> rowwise(args.stream), columnwise(args.stream);
    for (std::size_t r = 0; r < in.count; ++r) {
      PrefetchBytes(in.next[r], cols * kItemSize<T>);
      const std::size_t row = tile.row_begin + r;
      EncodeBoth(in.row[r], cols, batches[r], strip,
                 args.rowwise.codes + row * args.rowwise.code_stride + tile.col_begin, rowwise,
                 args.columnwise.codes + row * args.columnwise.code_stride + tile.col_begin,
                 columnwise);
      StoreBatch<S, T>(args.rowwise, row, tile.col_begin, cols, batches[r]);
    }
    const DirectionBuffers<std::byte>& out = args.columnwise;
    StoreStrip<S>(out, out.strides.BlockOffset(ScaleBlockIndex<S>(tile.row_begin)), tile.col_begin,
                  cols, strip);
    return true;
  }

  static HWY_INLINE void EncodeBoth(const std::byte* in, std::size_t cols, const Batch<S, T>& batch,
                                    const Strip<T>& strip, std::byte* rowwise,
                                    Outlet<kStripCols>& rowwise_outlet, std::byte* columnwise,
                                    Outlet<kStripCols>& columnwise_outlet) {
    using F = typename S::Element;
    const D8 d8;
    auto* row_codes = reinterpret_cast<std::uint8_t*>(rowwise_outlet.Open(rowwise));
    auto* column_codes = reinterpret_cast<std::uint8_t*>(columnwise_outlet.Open(columnwise));
    for (std::size_t c = 0; c < cols; c += hn::Lanes(d8)) {
      const std::byte* items = in + c * kItemSize<T>;
      const auto by_row = EncodeRun<F, T, Items::kOrdinary>(d8, items, BlockPowers<S, T>{batch, c});
      const auto by_column = EncodeRun<F, T, Items::kOrdinary>(d8, items, strip.Powers(c));
      hn::StoreU(by_row, d8, row_codes + c);
      hn::StoreU(by_column, d8, column_codes + c);
    }
    rowwise_outlet.Close(rowwise, cols);
    columnwise_outlet.Close(columnwise, cols);
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
