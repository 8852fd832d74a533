// SPDX-License-Identifier: Apache-2.0
// Quantizes blocks and square tiles with transposed columnwise codes: encodes patches in the
// first-level cache and writes their rows and transposes from there.
#include "narrowfloat/kernels/cpu/bodies.h"
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/quantize_transposed.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/strips-inl.h"
#include "narrowfloat/kernels/cpu/tiles-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

QuantizeSlots Table() {
  return {};
}

#else

/// Calls visit(rect) for each patch of a tile, row by row.
template <class Visit>
HWY_INLINE void ForEachPatch(const Tile& tile, const Visit& visit) {
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += kTransposedRun) {
    for (std::size_t col = tile.col_begin; col < tile.col_end; col += kPatchCols) {
      visit(Rect{row, std::min(kTransposedRun, tile.row_end - row), col,
                 std::min(kPatchCols, tile.col_end - col)});
    }
  }
}

/// Codes of a patch. After a short patch, old codes remain behind its own; they are never used.
struct Patch {
  alignas(64) std::byte codes[kTransposedRun * kPatchCols] = {};
  std::byte* Row(std::size_t row) { return codes + row * kPatchCols; }
};

/// Calls visit(strip, row) for each `kRows` rows of a patch; `row` is the patch's.
template <std::size_t kRows, class Visit>
HWY_INLINE void ForEachStrip(const Rect& square, const Visit& visit) {
  static_assert(kTransposedRun % kRows == 0);
  for (std::size_t row = 0; row < square.rows; row += kRows) {
    visit(Rect{square.row + row, std::min(kRows, square.rows - row), square.col, square.cols}, row);
  }
}

/// Returns row `r` of the strip after `strip`: below it in the same patch, or in the next patch.
template <std::size_t kRows, class T>
HWY_INLINE const std::byte* RowOfNext(const QuantizeArgs& args, const Rect& strip, std::size_t r) {
  const std::size_t below = strip.row + kRows + r;
  if (below % kTransposedRun >= kRows && below < args.shape.rows) {
    return args.in.Row(below) + strip.col * kItemSize<T>;
  }
  const std::size_t first = strip.row / kTransposedRun * kTransposedRun;
  return NextItems<T>(args, std::min(first + r, args.shape.rows - 1), strip.col + strip.cols,
                      kTransposedRun);
}

HWY_INLINE void StoreTransposed(const std::byte* patch, const Rect& square,
                                const DirectionBuffers<std::byte>& out,
                                PatchTransposer<kTransposedRun>& transposer) {
  transposer.Transpose(patch, kPatchCols, square.rows, square.cols,
                       out.codes + square.col * out.code_stride + square.row, out.code_stride);
}

/// Quantizes blocks of one column, columnwise.
template <class S, class T>
struct TransposeColumns {
  static constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block
  static void Run(const QuantizeArgs& args) noexcept {
    const typename S::TensorState state = S::Prepare(args.columnwise.amax, args.options);
    Patch patch;
    PatchTransposer<kTransposedRun> transposer(args.nontemporal);
    StagedWriter<kBatchCols> in_place(false);
    ForEachPatch(args.tile, [&](const Rect& square) NF_INLINE_ATTR {
      ForEachStrip<kRows>(square, [&](const Rect& strip, std::size_t row) NF_INLINE_ATTR {
        QuantizeStripOf(args, strip, state, patch.Row(row), in_place);
      });
      StoreTransposed(patch.codes, square, args.columnwise, transposer);
    });
  }

  static HWY_INLINE void QuantizeStripOf(const QuantizeArgs& args, const Rect& square,
                                         const typename S::TensorState& state, std::byte* codes,
                                         StagedWriter<kBatchCols>& in_place) {
    const DirectionBuffers<std::byte>& out = args.columnwise;
    const std::size_t block = out.strides.BlockOffset(ScaleBlockIndex<S>(square.row));
    const std::size_t whole = square.cols / hn::Lanes(D8()) * hn::Lanes(D8());
    for (const auto& [col, cols] :
         {std::pair{std::size_t{0}, whole}, std::pair{whole, square.cols - whole}}) {
      if (cols == 0) continue;
      StripRows<kRows, const std::byte> in;
      StripRows<kRows, std::byte> to;
      in.count = to.count = square.rows;
      for (std::size_t r = 0; r < square.rows; ++r) {
        in.row[r] = args.in.Row(square.row + r) + (square.col + col) * kItemSize<T>;
        in.next[r] = RowOfNext<kRows, T>(args, square, r);
        to.row[r] = codes + r * kPatchCols + col;
      }
      Strip<T> strip;
      if (cols == whole) {
        QuantizeStrip<S, T>(in, cols, state, strip, to, in_place);
      } else {
        QuantizeNarrow<S, T>(in, cols, state, strip, to);
      }
      StoreStrip<S>(out, block, square.col + col, cols, strip);
    }
  }
};

/// Quantizes square tiles that are as wide as a patch.
template <class S, class T, Direction kDirection>
struct TransposeTiles {
  static constexpr std::size_t kRows = S::kBlock.rows;

  static void Run(const QuantizeArgs& args) noexcept {
    const typename S::TensorState state = S::Prepare(args.columnwise.amax, args.options);
    Patch patch;
    PatchTransposer<kTransposedRun> transposer(args.nontemporal);
    StagedWriter<kBatchCols> in_place(false, args.nontemporal);
    ForEachPatch(args.tile, [&](const Rect& square) NF_INLINE_ATTR {
      ForEachStrip<kRows>(square, [&](const Rect& strip, std::size_t row) NF_INLINE_ATTR {
        Batch<S, T> batch;
        EncodeTile(args, strip, state, patch.Row(row), batch, in_place);
        StoreBatchScales<S, T, Direction::kColumnwise>(args.columnwise, strip, batch);
        if constexpr (kDirection == Direction::kBoth)
          StoreBatchScales<S, T, Direction::kRowwise>(args.rowwise, strip, batch);
      });
      StoreTransposed(patch.codes, square, args.columnwise, transposer);
    });
  }

  static HWY_INLINE void EncodeTile(const QuantizeArgs& args, const Rect& square,
                                    const typename S::TensorState& state, std::byte* codes,
                                    Batch<S, T>& batch, StagedWriter<kBatchCols>& in_place) {
    StripRows<kRows, const std::byte> in;
    StripCodes<kRows> out;
    in.count = out.count = square.rows;
    for (std::size_t r = 0; r < square.rows; ++r) {
      in.row[r] = args.in.Row(square.row + r) + square.col * kItemSize<T>;
      out.row[r] = codes + r * kPatchCols;
      out.copy[r] = nullptr;
      if constexpr (kDirection == Direction::kBoth) {
        out.copy[r] = args.rowwise.codes + (square.row + r) * args.rowwise.code_stride + square.col;
      }
      in.next[r] = RowOfNext<kRows, T>(args, square, r);
    }
    if (square.cols == kPatchCols) {
      QuantizeBatch<S, T>(in, 1, state, batch, out, in_place);
    } else {
      QuantizeShort<S, T>(in, square.cols, state, batch, out);
    }
  }
};

template <class S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (cpu::BodyOf<S>(kDirection) != cpu::Body::kTransposed) {
    return {};
  } else if constexpr (SquareBlockScheme<S>) {
    return {&TransposeTiles<S, T, kDirection>::Run...};
  } else {
    return {&TransposeColumns<S, T>::Run...};
  }
}

template <class... S>
constexpr QuantizeSlots MakeTable(TypeList<S...>) {
  return {{{{{},
             Types<S, Direction::kColumnwise>(FloatTypes{}),
             Types<S, Direction::kBoth>(FloatTypes{})}}...}};
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
QuantizeSlots QuantizeTransposedTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
