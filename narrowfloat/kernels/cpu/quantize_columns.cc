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
#include "narrowfloat/kernels/cpu/strips-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

QuantizeSlots Table() {
  return {};
}

#else

template <class S, class T>
struct QuantizeColumns {
  static constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block

  static void Run(const QuantizeArgs& args) noexcept {
    const DirectionBuffers<std::byte>& out = args.columnwise;
    const typename S::TensorState state = S::Prepare(out.amax, args.options);
    const Tile& tile = args.tile;
    const std::size_t lanes = hn::Lanes(D8());
    StagedWriter<kBatchCols> writer(args.nontemporal);
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      const std::size_t rows = std::min(kRows, tile.row_end - row);
      const std::size_t block = out.strides.BlockOffset(ScaleBlockIndex<S>(row));
      for (std::size_t col = tile.col_begin; col < tile.col_end;) {
        const std::size_t left = tile.col_end - col;
        const std::size_t cols = left < lanes ? left : std::min(kBatchCols, left / lanes * lanes);
        StripRows<kRows, const std::byte> in;
        StripRows<kRows, std::byte> codes;
        in.count = codes.count = rows;
        for (std::size_t r = 0; r < rows; ++r) {
          in.row[r] = args.in.Row(row + r) + col * kItemSize<T>;
          in.next[r] = NextItems<T>(args, row + r, col + cols, kRows);
          codes.row[r] = out.codes + (row + r) * out.code_stride + col;
        }
        Strip<T> strip;
        if (cols >= lanes) {
          QuantizeStrip<S, T>(in, cols, state, strip, codes, writer);
        } else {
          QuantizeNarrow<S, T>(in, cols, state, strip, codes);
        }
        StoreStrip<S>(out, block, col, cols, strip);
        col += cols;
      }
    }
  }
};

/// Quantizes both directions, in one pass over the items where RunTogether can.
template <class S, class T>
struct QuantizeBoth {
  static constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block

  static void Run(const QuantizeArgs& args) noexcept {
    const Tile& tile = args.tile;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kBatchCols) {
        QuantizeArgs part = args;
        part.tile = {row, std::min(row + kRows, tile.row_end), col,
                     std::min(col + kBatchCols, tile.col_end)};
        if (RunTogether(part)) continue;
        QuantizeRows<S, T>::Run(part);
        QuantizeColumns<S, T>::Run(part);
      }
    }
  }

  /// Quantizes a strip of whole blocks in both directions. Returns false, before writing anything,
  /// if a block is short, an item is not finite or a scale is not a power of two.
  static HWY_INLINE bool RunTogether(const QuantizeArgs& args) {
    const Tile& tile = args.tile;
    const std::size_t cols = tile.col_end - tile.col_begin;
    if (cols % std::max(hn::Lanes(D8()), S::kBlock.cols) != 0) return false;
    const typename S::TensorState state = S::Prepare(args.rowwise.amax, args.options);
    StripRows<kRows, const std::byte> in;
    in.count = tile.row_end - tile.row_begin;
    for (std::size_t r = 0; r < in.count; ++r) {
      in.row[r] = args.in.Row(tile.row_begin + r) + tile.col_begin * kItemSize<T>;
      in.next[r] = NextItems<T>(args, tile.row_begin + r, tile.col_end, kRows);
    }
    Batch<S, T> batches[kRows];
    Strip<T> strip;
    if (!ComputeScales(in, cols, state, batches, strip)) return false;

    StagedWriter<kBatchCols> rowwise(args.nontemporal), columnwise(args.nontemporal);
    for (std::size_t r = 0; r < in.count; ++r) {
      const std::size_t row = tile.row_begin + r;
      EncodeBoth(in.row[r], in.next[r], cols, batches[r], strip,
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

  /// Computes the scales of rows and columns, a few rows at a time. Returns false if an item is not
  /// finite or a scale is not a power of two.
  static HWY_INLINE bool ComputeScales(const StripRows<kRows, const std::byte>& in,
                                       std::size_t cols, const typename S::TensorState& state,
                                       Batch<S, T>* batches, Strip<T>& strip) {
    for (std::size_t first = 0; first < in.count; first += kRowsPerPass<T>) {
      const std::size_t end = std::min(first + kRowsPerPass<T>, in.count);
      const std::uint32_t most = ColumnMaximaOfPass<T, Inputs::kFinite>(
          in.row + first, end - first, cols, first == 0, strip.magnitude);
      if (most >= kInfinityBits<T>) return false;
      for (std::size_t r = first; r < end; ++r) {
        ComputeBlockAmaxes<S, T, Inputs::kFinite>(in.row[r], cols / S::kBlock.cols, batches[r]);
        batches[r].ComputeScales(state, cols / S::kBlock.cols);
        if (!batches[r].powers_of_two) return false;
      }
    }
    strip.template ComputeScales<S>(cols, state);
    return strip.powers_of_two;
  }

  static HWY_INLINE hn::Vec<D8> UpperBytes(hn::Vec<D16> low, hn::Vec<D16> high) {
    return hn::ConcatOdd(D8(), hn::BitCast(D8(), high), hn::BitCast(D8(), low));
  }

  static HWY_INLINE void EncodeBoth(const std::byte* in, const std::byte* next, std::size_t cols,
                                    const Batch<S, T>& batch, const Strip<T>& strip,
                                    std::byte* rowwise, StagedWriter<kBatchCols>& rowwise_writer,
                                    std::byte* columnwise,
                                    StagedWriter<kBatchCols>& columnwise_writer) {
    using F = typename S::Element;
    const D8 d8;
    // Writes the rowwise codes directly and stages the columnwise ones, as OpenCopy does.
    const VectorWriter row_codes = rowwise_writer.Open(d8, rowwise);
    auto* column_codes = reinterpret_cast<std::uint8_t*>(columnwise_writer.Open(columnwise));
    for (std::size_t c = 0; c < cols; c += hn::Lanes(d8)) {
      const std::byte* items = in + c * kItemSize<T>;
      PrefetchBytes(next + c * kItemSize<T>, hn::Lanes(d8) * kItemSize<T>);
      const BlocksPowerOfTwo<S, T, DF> by_row{{batch, c / S::kBlock.cols}};
      const LanePowersOfTwo<T, DF> by_column = strip.PowersOfTwo(c);
      if constexpr (kItemSize<T> == 2 && !kByTable<F, T>) {
        // Encodes half a vector at a time, so that the items stay in registers for both directions.
        const auto part = [&](std::size_t i, hn::Vec<D16>& row, hn::Vec<D16>& column)
                              NF_INLINE_ATTR {
                                const D16 d16;
                                const auto halves = LoadItems(d16, items + i * hn::Lanes(d16) * 2);
                                row = Encode16PowerOfTwo<F, T>(d16, halves, by_row, i);
                                column = Encode16PowerOfTwo<F, T>(d16, halves, by_column, i);
                              };
        hn::Vec<D16> rows[2], columns[2];
        part(0, rows[0], columns[0]);
        part(1, rows[1], columns[1]);
        row_codes.Put(d8, UpperBytes(rows[0], rows[1]), c);
        hn::StoreU(UpperBytes(columns[0], columns[1]), d8, column_codes + c);
      } else {
        const auto row = EncodeRun<F, T, Inputs::kFinite>(d8, items, by_row);
        const auto column = EncodeRun<F, T, Inputs::kFinite>(d8, items, by_column);
        row_codes.Put(d8, row, c);
        hn::StoreU(column, d8, column_codes + c);
      }
    }
    rowwise_writer.Close(row_codes, rowwise, cols);
    columnwise_writer.Close(columnwise, cols);
  }
};

template <class S, template <class, class> class Kernel, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (RowBlockScheme<S> && ByteScheme<S> && !S::kLayout.columnwise_transposed) {
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
