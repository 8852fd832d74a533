// SPDX-License-Identifier: Apache-2.0
// Quantizes to codes of four bits: NVFP4, whose scales have two levels, and MXFP4.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/kernels/cpu/bodies.h"

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"
#include "narrowfloat/kernels/cpu/four_over_six-inl.h"
#include "narrowfloat/kernels/cpu/pack-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

inline constexpr std::size_t kMaxLanes = HWY_MAX_BYTES;

/// Columns of a batch: first amaxes, then scales, then codes. Each batch pays once for the latency
/// from its last load to its first code.
inline constexpr std::size_t kBatchCols = 1024;
template <Scheme S>
inline constexpr std::size_t kBatch = kBatchCols / S::kBlock.cols;

/// Amaxes and scales of up to kBatch adjacent blocks of one strip, the rows of one row of blocks.
template <Scheme S, class T>
struct Batch {
  alignas(64) BitsOf<T> largest[kBatch<S>] = {};  // patterns of the blocks' amaxes
  alignas(64) float scale[kBatch<S>];
  alignas(64) std::uint32_t scale_inv[kBatch<S>];
};

/// The same of a strip's column blocks. `scale` is in LaneScales' order.
template <class T>
struct Strip {
  alignas(64) std::make_signed_t<BitsOf<T> > magnitude[kPatchCols];
  alignas(64) float scale[kPatchCols];
  alignas(64) std::uint32_t scale_inv[kPatchCols];  // in memory order

  HWY_INLINE LaneScales<DF> Scales(std::size_t col) const { return {scale + col}; }
};

/// The rows of a strip, from a batch's first column on.
template <std::size_t kRows>
struct StripRows {
  const std::byte* row[kRows];
  std::size_t count;
  const std::byte* next[kRows] = {};  // addresses to prefetch, or null
};

/// Computes the amaxes of a strip's blocks. Blocks of several rows: takes the maxima of columns
/// first, then those of one row of maxima. Returns true if all items are finite.
template <Scheme S, class T, Inputs kInputs>
HWY_INLINE bool ComputeStripAmaxes(const StripRows<S::kBlock.rows>& in, std::size_t blocks,
                                   Batch<S, T>& batch) {
  constexpr std::size_t kCols = S::kBlock.cols;
  auto* amaxes = reinterpret_cast<std::byte*>(batch.largest);
  if constexpr (S::kBlock.rows == 1) {
    return BlockAmaxes<T, kInputs, kCols, kBatch<S> >(in.row[0], blocks, amaxes) < kInfinityBits<T>;
  } else {
    alignas(64) std::make_signed_t<BitsOf<T> > maxima[kBatchCols];
    ColumnMaxima<T, kInputs, kCols>(in.row, in.count, blocks * kCols, maxima);
    return BlockAmaxes<T, kInputs, kCols, kBatch<S> >(reinterpret_cast<const std::byte*>(maxima),
                                                      blocks, amaxes) < kInfinityBits<T>;
  }
}

/// Quantizes rowwise, in strips of the block's height.
template <class S, class T>
class RowPacker {
 public:
  explicit RowPacker(const QuantizeArgs& args)
      : args_(args), out_(args.rowwise), writer_(args.nontemporal) {}

  void Run(const Tile& tile) {
    typename S::TensorState state = S::Prepare(out_.AmaxOf(tile.row_begin), args_.options);
    const std::size_t ahead = std::min(kBatchCols, tile.col_end - tile.col_begin);
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      if (out_.line_amaxes != nullptr) state = S::Prepare(out_.AmaxOf(row), args_.options);
      StripRows<kRows> in;
      in.count = std::min(kRows, tile.row_end - row);
      for (std::size_t col = tile.col_begin; col < tile.col_end;) {
        const std::size_t left = tile.col_end - col;
        const std::size_t blocks = std::min(kBatch<S>, left / kCols);
        for (std::size_t r = 0; r < in.count; ++r) {
          in.row[r] = args_.in.Row(row + r) + col * kItemSize<T>;
          in.next[r] = NextItems<T>(args_, row + r, col + ahead, kRows);
        }
        if (blocks > 0) {
          PackBatch(in, blocks, state, row, col);
        } else {
          PackShort(in, left, state, row, col);
        }
        col += blocks > 0 ? blocks * kCols : left;
      }
    }
  }

 private:
  static constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;

  std::byte* CodesAt(std::size_t row, std::size_t col) const {
    return out_.codes + row * out_.code_stride + col / kCodesPerByte<S>;
  }

  /// Computes the scales of whole blocks. Returns true if Inputs::kFinite holds for all items: they
  /// are finite and no scale needs the slow path.
  bool ComputeScales(const StripRows<kRows>& in, std::size_t blocks,
                     const typename S::TensorState& state, Batch<S, T>& batch) {
    const bool finite = ComputeStripAmaxes<S, T, Inputs::kFinite>(in, blocks, batch);
    if (!finite) ComputeStripAmaxes<S, T, Inputs::kAll>(in, blocks, batch);
    if constexpr (FourOverSixScheme<S>) {
      if (S::UsesFourOverSix(state)) return Choose(in, blocks, state, batch) && finite;
    }
    alignas(64) float amax[kBatch<S>];
    for (std::size_t j = 0; j < kBatch<S>; ++j) amax[j] = MagnitudeValue<T>(batch.largest[j]);
    if constexpr (TwoLevelScheme<S>) {
      return ComputeTwoLevelScales<S>(amax, blocks, UniformState<S>(state), batch.scale_inv,
                                      batch.scale) &&
             finite;
    } else {
      ComputeOneLevelScales<S>(amax, kBatch<S>, state, batch.scale_inv, batch.scale);
      return finite;
    }
  }

  HWY_NOINLINE bool Choose(const StripRows<kRows>& in, std::size_t blocks,
                           const typename S::TensorState& state, Batch<S, T>& batch) {
    FourOverSixChoice<S, kBatch<S>, kRows, kCols> choice;
    const UniformState<S> states(state);
    alignas(64) float amax[kBatch<S>];
    for (std::size_t j = 0; j < kBatch<S>; ++j) amax[j] = MagnitudeValue<T>(batch.largest[j]);
    const bool fits = choice.ComputeCandidates(amax, blocks, states);
    for (std::size_t r = 0; r < in.count; ++r) {
      choice.template SetItemsOfBlocks<T>(in.row[r], blocks);
      choice.ComputeErrors(r, blocks, states, state);
    }
    choice.AddLines(blocks);
    choice.Choose(blocks, batch.scale_inv, batch.scale);
    return fits;
  }

  void PackBatch(const StripRows<kRows>& in, std::size_t blocks,
                 const typename S::TensorState& state, std::size_t row, std::size_t col) {
    Batch<S, T> batch;
    const bool finite = ComputeScales(in, blocks, state, batch);
    const std::size_t bytes = blocks * kCols / kCodesPerByte<S>;
    for (std::size_t r = 0; r < in.count; ++r) {
      std::byte* out = CodesAt(row + r, col);
      const VectorWriter codes = writer_.Open(D8(), out);
      PackRow(in.row[r], in.next[r], blocks, batch, finite, row + r, col, codes);
      writer_.Close(codes, out, bytes);
    }
    StoreScales(batch, row, in.count, col, blocks);
  }

  void PackRow(const std::byte* in, const std::byte* next, std::size_t blocks,
               const Batch<S, T>& batch, bool finite, std::size_t row, std::size_t col,
               const VectorWriter& codes) {
    using F = typename S::Element;
    if constexpr (kRoundsStochastically<S>) {
      if (args_.rounding == Rounding::kStochastic) {
        static_assert(kCols == kRandomRun);
        FillRandom(args_.random, row * CeilDiv(args_.shape.cols, kRandomRun) + col / kRandomRun, 1,
                   blocks, random_);
        return PackBlocks<S, T>(in, blocks, batch.scale, StochasticCoder{random_}, codes, next);
      }
    }
    if (finite) {
      PackBlocks<S, T>(in, blocks, batch.scale, NearestCoder<F, Inputs::kFinite>(), codes, next);
    } else {
      PackBlocks<S, T>(in, blocks, batch.scale, NearestCoder<F, Inputs::kAll>(), codes, next);
    }
  }

  /// Quantizes one block of fewer than kBlock.cols columns, padded with zeros.
  HWY_NOINLINE void PackShort(const StripRows<kRows>& in, std::size_t cols,
                              const typename S::TensorState& state, std::size_t row,
                              std::size_t col) {
    ZeroPadded<T, kCols> padded[kRows];
    StripRows<kRows> staged{};
    staged.count = in.count;
    for (std::size_t r = 0; r < in.count; ++r) {
      padded[r].Fill(in.row[r], cols);
      staged.row[r] = padded[r].items;
    }
    Batch<S, T> batch;
    ComputeScales(staged, 1, state, batch);
    for (std::size_t r = 0; r < in.count; ++r) {
      std::uint8_t codes[kCols / kCodesPerByte<S>];
      PackRow(staged.row[r], nullptr, 1, batch, false, row + r, col, {codes, false});
      std::memcpy(CodesAt(row + r, col), codes, cols / kCodesPerByte<S>);
    }
    StoreScales(batch, row, in.count, col, 1);
  }

  void StoreScales(const Batch<S, T>& batch, std::size_t row, std::size_t rows, std::size_t col,
                   std::size_t blocks) const {
    const std::size_t first = ScaleBlockIndex<S>(col);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::size_t line = out_.strides.LineOffset(ScaleLine<S>(row + r));
      if (out_.strides.BlocksAreAdjacent()) {
        StoreScaleInvs<S>(out_.scale_inv, line + first, batch.scale_inv, blocks);
        continue;
      }
      for (std::size_t j = 0; j < blocks; ++j)
        StoreScaleInv<S>(out_.scale_inv, line + out_.strides.BlockOffset(first + j),
                         batch.scale_inv[j]);
    }
  }

  const QuantizeArgs& args_;
  const DirectionBuffers<std::byte>& out_;
  StagedWriter<kBatchCols / kCodesPerByte<S> > writer_;
  alignas(64) std::uint8_t random_[kBatchCols + kPackRun] = {};
};

/// Quantizes columnwise: packs codes of patches with columns as lanes, then transposes the bytes.
template <class S, class T>
class ColumnPacker {
 public:
  explicit ColumnPacker(const QuantizeArgs& args)
      : args_(args),
        out_(args.columnwise),
        state_(S::Prepare(out_.amax, args.options)),
        transposer_(args.nontemporal) {
    if constexpr (TwoLevelScheme<S>) {
      if (out_.line_amaxes == nullptr) LoadStates(0, kPatchCols);
    }
  }

  void Run(const Tile& tile) {
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kPatchItems) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kPatchCols) {
        PackPatch({row, std::min(kPatchItems, tile.row_end - row), col,
                   std::min(kPatchCols, tile.col_end - col)});
      }
    }
  }

 private:
  static constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block
  static constexpr std::size_t kPatchItems = kPatchRows * kCodesPerByte<S>;
  static constexpr std::size_t kPatchBlocks = kPatchItems / kRows;  // of a patch's column
  static_assert(kCodesPerByte<S> == 2 && kPatchItems % kRows == 0);

  void PackPatch(const Rect& square) {
    if constexpr (TwoLevelScheme<S>) {
      if (out_.line_amaxes != nullptr) LoadStates(square.col, square.cols);
    }
    for (std::size_t r = 0; r < square.rows; r += kRows) {
      const Rect strip{square.row + r, std::min(kRows, square.rows - r), square.col, square.cols};
      PackStrip(strip, codes_ + r / kCodesPerByte<S> * kPatchCols);
      StoreScaleInvs<S>(scales_[r / kRows], 0, strip_.scale_inv, square.cols);
    }
    StoreScales(square);
    transposer_.Transpose(
        codes_, kPatchCols, square.rows / kCodesPerByte<S>, square.cols,
        out_.codes + square.col * out_.code_stride + square.row / kCodesPerByte<S>,
        out_.code_stride);
  }

  void LoadStates(std::size_t col, std::size_t cols) {
    states_.Load(cols,
                 [&](std::size_t i) { return S::Prepare(out_.AmaxOf(col + i), args_.options); });
  }

  /// Quantizes one block for each column of a strip. Pads the columns to whole vectors with zeros.
  void PackStrip(const Rect& square, std::byte* codes) {
    const std::size_t cols = RoundUp(square.cols, hn::Lanes(D8()));
    const std::byte* rows[kRows];
    for (std::size_t r = 0; r < square.rows; ++r) {
      rows[r] = args_.in.Row(square.row + r) + square.col * kItemSize<T>;
      if (cols == square.cols) continue;
      padded_[r].Fill(rows[r], square.cols);
      rows[r] = padded_[r].items;
    }
    using F = typename S::Element;
    const bool finite = ComputeScales(rows, square.rows, cols);
    if constexpr (kRoundsStochastically<S>) {
      if (args_.rounding == Rounding::kStochastic) {
        DrawRandom(square);
        return PackRows(rows, square, cols, StochasticCoder{random_}, codes);
      }
    }
    if (finite) {
      PackRows(rows, square, cols, NearestCoder<F, Inputs::kFinite>(), codes);
    } else {
      PackRows(rows, square, cols, NearestCoder<F, Inputs::kAll>(), codes);
    }
  }

  /// Stores the scales of all blocks of a patch, column by column: columns are often a power of two
  /// of cache lines apart, so that they evict each other from the first-level cache.
  void StoreScales(const Rect& square) const {
    const std::size_t first = ScaleBlockIndex<S>(square.row);
    const std::size_t blocks = CeilDiv(square.rows, kRows);
    alignas(64) std::uint8_t turned[kSquareSide * kMaxLanes];  // kMaxLanes apart
    for (std::size_t c = 0; c < square.cols; ++c) {
      if (c % kSquareSide == 0) {
        TransposeSquares(reinterpret_cast<const std::uint8_t*>(scales_[0] + c), kPatchCols, turned,
                         kMaxLanes);
      }
      const std::uint8_t* of = turned + c % kSquareSide * kMaxLanes;
      std::byte* line = out_.scale_inv + out_.strides.LineOffset(ScaleLine<S>(square.col + c));
      if (out_.strides.BlocksAreAdjacent() && blocks == kPatchBlocks) {
        std::memcpy(line + first, of, kPatchBlocks);
        continue;
      }
      for (std::size_t j = 0; j < blocks; ++j)
        StoreScaleInv<S>(line, out_.strides.BlockOffset(first + j), of[j]);
    }
  }

  /// Computes the scales of a strip's columns. Returns true if Inputs::kFinite holds for all items.
  bool ComputeScales(const std::byte* const* rows, std::size_t count, std::size_t cols) {
    const bool finite =
        ColumnMaxima<T, Inputs::kFinite>(rows, count, cols, strip_.magnitude) < kInfinityBits<T>;
    if (!finite) ColumnMaxima<T, Inputs::kAll>(rows, count, cols, strip_.magnitude);
    alignas(64) float amax[kPatchCols], scales[kPatchCols] = {};  // in memory order
    for (std::size_t c = 0; c < cols; ++c) {
      amax[c] = MagnitudeValue<T>(static_cast<BitsOf<T> >(strip_.magnitude[c]));
    }
    if constexpr (S::kBlock.rows > 1) ShareWithinTiles(cols, amax);
    const bool fits = ComputeScales(rows, count, amax, cols, scales);
    CopyToLanes<T>(scales, cols, strip_.scale);
    return fits && finite;
  }

  bool ComputeScales(const std::byte* const* rows, std::size_t count, const float* amax,
                     std::size_t cols, float* scales) {
    if constexpr (FourOverSixScheme<S>) {
      if (S::UsesFourOverSix(state_)) return Choose(rows, count, amax, cols, scales);
    }
    if constexpr (TwoLevelScheme<S>) {
      return ComputeTwoLevelScales<S>(amax, cols, states_, strip_.scale_inv, scales);
    } else {
      ComputeOneLevelScales<S>(amax, cols, state_, strip_.scale_inv, scales);
      return true;
    }
  }

  HWY_NOINLINE bool Choose(const std::byte* const* rows, std::size_t count, const float* amax,
                           std::size_t cols, float* scales) {
    FourOverSixChoice<S, kPatchCols, 1, kRows> choice;
    const bool fits = choice.ComputeCandidates(amax, cols, states_);
    for (std::size_t r = 0; r < count; ++r) choice.template SetItems<T>(r, rows[r], cols);
    choice.ComputeErrors(0, cols, states_, state_);
    if constexpr (S::kBlock.rows > 1) choice.AddAdjacentLines(cols, S::kBlock.rows);
    choice.Choose(cols, strip_.scale_inv, scales);
    return fits;
  }

  static void ShareWithinTiles(std::size_t cols, float* amax) {
    for (std::size_t c = 0; c < cols; c += S::kBlock.rows) {
      const std::size_t end = std::min(cols, c + S::kBlock.rows);
      std::fill(amax + c, amax + end, *std::max_element(amax + c, amax + end));
    }
  }

  /// Draws a random byte for each item of a strip, stored row by row, kPatchCols apart.
  void DrawRandom(const Rect& square) {
    static_assert(kRows == kRandomRun && kSquareSide == kRandomRun);
    const std::size_t runs = CeilDiv(args_.shape.rows, kRandomRun);  // of a column
    alignas(64) std::uint8_t drawn[kPatchCols * kRandomRun];         // column by column
    FillRandom(args_.random, kColumnwiseRuns + square.col * runs + square.row / kRandomRun, runs,
               square.cols, drawn);
    for (std::size_t c = 0; c < square.cols; c += hn::Lanes(D8Squares())) {
      TransposeSquares(drawn + c * kRandomRun, kRandomRun, random_ + c, kPatchCols);
    }
  }

  /// Encodes and packs a strip, two rows at a time, and prefetches the next patch.
  template <class Coder>
  void PackRows(const std::byte* const* rows, const Rect& square, std::size_t cols,
                const Coder& coder, std::byte* codes) const {
    static_assert(kCodesPerByte<S> == 2);
    const auto next = [&](std::size_t r) NF_INLINE_ATTR {
      return NextItems<T>(args_, square.row + r, square.col + kPatchCols, kPatchItems);
    };
    for (std::size_t r = 0; r < square.rows; r += 2, codes += kPatchCols) {
      const std::byte *first = next(r), *second = next(r + 1);
      for (std::size_t c = 0; c < cols; c += hn::Lanes(D8())) {
        const std::size_t from = c * kItemSize<T>;
        PrefetchBytes(first + from, hn::Lanes(D8()) * kItemSize<T>);
        PrefetchBytes(second + from, hn::Lanes(D8()) * kItemSize<T>);
        const auto packed =
            PackColumnRun<T>(rows[r] + from, rows[r + 1] + from, strip_.Scales(c),
                             coder.From(r * kPatchCols + c), coder.From((r + 1) * kPatchCols + c));
        hn::StoreU(packed, D8(), reinterpret_cast<std::uint8_t*>(codes + c));
      }
    }
  }

  const QuantizeArgs& args_;
  const DirectionBuffers<std::byte>& out_;
  const typename S::TensorState
      state_;  // its options hold for every line, its amax for all or none
  PatchTransposer<kPatchRows> transposer_;
  struct NoStates {};
  std::conditional_t<TwoLevelScheme<S>, LineStates<S, kPatchCols>, NoStates> states_;
  Strip<T> strip_;
  ZeroPadded<T, kPatchCols> padded_[kRows];
  alignas(64) std::uint8_t random_[kPatchCols * kRandomRun];
  alignas(64) std::byte codes_[kPatchRows * kPatchCols] = {};
  static_assert(kScaleBytes<S> == 1 && kPatchBlocks <= kSquareSide);
  alignas(
      64) std::byte scales_[kMaxLanes][kPatchCols] = {};  // more than kSquareSide are transposed
};

template <class S, class T, Direction kDirection>
struct QuantizePacked {
  static void Run(const QuantizeArgs& args) noexcept {
    if (!Serves(args)) {
      ScalarKernels().quantize[kSchemeIndex<S>][static_cast<std::size_t>(kDirection)]
                              [static_cast<std::size_t>(kDTypeOf<T>)](args);
      return;
    }
    if constexpr (kDirection == Direction::kRowwise) {
      RowPacker<S, T>(args).Run(args.tile);
    } else {
      ColumnPacker<S, T>(args).Run(args.tile);
    }
  }

 private:
  /// Returns false for two-level scales that are not positive, which only a given amax can bring:
  /// the scalar body takes these.
  static bool Serves(const QuantizeArgs& args) {
    if constexpr (TwoLevelScheme<S>) {
      const bool rowwise = kDirection == Direction::kRowwise;
      const float amax = (rowwise ? args.rowwise : args.columnwise).amax;
      return S::Prepare(amax, args.options).encode > 0.0f;
    } else {
      return true;
    }
  }
};

template <class S, Direction kDirection, class... T>
constexpr ByType<QuantizeFn> Types(TypeList<T...>) {
  if constexpr (cpu::BodyOf<S>(kDirection) == cpu::Body::kPacked) {
    return {&QuantizePacked<S, T, kDirection>::Run...};
  } else {
    return {};
  }
}

template <class... S>
constexpr QuantizeSlots MakeTable(TypeList<S...>) {
  return {{{{Types<S, Direction::kRowwise>(FloatTypes{}),
             Types<S, Direction::kColumnwise>(FloatTypes{}),
             {}}}...}};
}

}  // namespace

QuantizeSlots QuantizePackedTable() {
  return MakeTable(AllSchemes{});
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
