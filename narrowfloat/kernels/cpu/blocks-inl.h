// SPDX-License-Identifier: Apache-2.0
// Quantizes blocks along rows, of one row (1x32) or several (32x32). A strip is the rows of one row
// of blocks; a batch is the blocks of a strip whose amaxes, scales and codes are computed together.
// Compiled once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kBatchCols = 1024;  // columns of a strip whose scales stay in L1

/// Columns of a batch: first amaxes, then scales, then codes. Each batch pays once for the latency
/// from its last load to its first code, so batches of single rows are longer.
template <Scheme S>
inline constexpr std::size_t kRunCols =
    S::kBlock.rows == 1 && ByteScheme<S> ? 2 * kBatchCols : kBatchCols;

/// Blocks of a batch, and blocks of a group, whose scales are computed together.
template <Scheme S>
inline constexpr std::size_t kBatch = kRunCols<S> / S::kBlock.cols;
template <Scheme S>
inline constexpr std::size_t kGroup = kBatchCols / S::kBlock.cols;

/// Holds amaxes and scales of up to kBatch adjacent blocks of one strip.
template <Scheme S, class T>
struct Batch {
  alignas(64) BitsOf<T> largest[kBatch<S>];  // patterns of the blocks' amaxes
  alignas(64) float scale[kBatch<S>];
  alignas(64) std::uint32_t scale_inv[kBatch<S>];
  // PowerOfTwoScale's constants, valid if `powers_of_two`.
  alignas(64) std::uint32_t floor[kBatch<S>];
  alignas(64) float multiplier[kBatch<S>];
  bool finite;  // no item is infinite or NaN
  bool powers_of_two = false;

  /// Computes scales of whole groups until `blocks` are covered, by loops of constant length, which
  /// the compiler vectorizes for schemes without branches.
  HWY_INLINE void ComputeScales(typename S::TensorState state, std::size_t blocks) {
    using PowerOfTwo = PowerOfTwoScale<typename S::Element, T>;
    std::uint32_t slow = 0;
    for (std::size_t j = 0; j < blocks; j += kGroup<S>) {
      const std::size_t end = j + kGroup<S>;
      float amax[kGroup<S>];
      for (std::size_t i = j; i < end; ++i) amax[i - j] = MagnitudeValue<T>(largest[i]);
      for (std::size_t i = j; i < end; ++i) {
        const BlockScale computed = S::ScaleBlock(amax[i - j], state);
        scale[i] = computed.scale;
        scale_inv[i] = computed.scale_inv;
      }
      for (std::size_t i = j; i < end; ++i)
        slow |= PowerOfTwo::NeedsSlowPath(scale[i], amax[i - j]);
      for (std::size_t i = j; i < end; ++i) floor[i] = PowerOfTwo::Floor(scale[i]);
      if constexpr (kByTable<typename S::Element, T>) continue;
      for (std::size_t i = j; i < end; ++i) multiplier[i] = PowerOfTwo::Multiplier(scale[i]);
    }
    powers_of_two = slow >> 31 == 0;
  }

  template <class DF>
  HWY_INLINE UniformScale<DF> Scale(DF df, std::size_t j) const {
    return {hn::Set(df, scale[j])};
  }
  template <class DF>
  HWY_INLINE UniformPowerOfTwo<T, DF> PowersOfTwo(DF df, std::size_t j) const {
    const hn::RebindToUnsigned<DF> d32;
    const hn::Repartition<FloorBits<T>, DF> d;
    return {hn::BitCast(d, hn::Set(d32, floor[j])), hn::Set(df, multiplier[j])};
  }
};

/// The rows of a strip, from a batch's first column on. kRows is the height of a block.
template <std::size_t kRows, class Byte>
struct StripRows {
  Byte* row[kRows];
  std::size_t count;
  Byte* next[kRows] = {};  // addresses to prefetch, or null
};

/// Does one level of a max tree over several vectors: interleaves the lower and the upper halves of
/// two vectors' 128-bit blocks in units of Unit, and takes the maximum of both results. After the
/// last level, lane j of a 128-bit block holds the maximum of vector j's block. 3 ops.
template <class Unit, class DI>
HWY_INLINE hn::Vec<DI> MergeMaxima(DI di, hn::Vec<DI> even, hn::Vec<DI> odd) {
  const hn::Repartition<Unit, DI> d;
  const auto a = hn::BitCast(d, even), b = hn::BitCast(d, odd);
  return hn::Max(hn::BitCast(di, hn::InterleaveLower(d, a, b)),
                 hn::BitCast(di, hn::InterleaveUpper(d, a, b)));
}

/// Returns the lane-wise maximum of a vector's 128-bit blocks.
template <class DI>
HWY_INLINE auto ReduceBlocks(DI /*di*/, hn::Vec<DI> lanes) {
  if constexpr (hn::MaxLanes(DI()) * sizeof(hn::TFromD<DI>) <= 16) {
    return lanes;
  } else {
    const hn::Half<DI> half;
    return ReduceBlocks(half, hn::Max(hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
  }
}

/// Blocks whose amaxes one tree computes: the lanes of a 128-bit vector.
template <class T>
inline constexpr std::size_t kBlocksPerTree = 16 / kItemSize<T>;

/// Concatenates group(j), group(j + n), ..., where n is the lanes of 128 bits, to one vector of D.
template <class D, class Group>
HWY_INLINE hn::Vec<D> JoinGroups(D d, std::size_t j, const Group& group) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) <= 16) {
    return group(j);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, JoinGroups(half, j + hn::Lanes(half), group), JoinGroups(half, j, group));
  }
}

/// Stores the amax pattern of each block in `batch`, zeros for the rest of the last group, and
/// whether all items are finite.
/// Stores whole vectors, because ComputeScales loads whole vectors: a load that covers several
/// narrower stores cannot be forwarded, and stalls until these and all earlier stores are in the
/// cache.
template <Scheme S, class T, Inputs kInputs>
HWY_INLINE void ComputeBlockAmaxes(const std::byte* row, std::size_t blocks, Batch<S, T>& batch) {
  using I = std::make_signed_t<BitsOf<T>>;
  const hn::CappedTag<I, S::kBlock.cols> di;
  const hn::FixedTag<I, kBlocksPerTree<T>> d128;
  const std::size_t lanes = hn::Lanes(di);
  const auto measure = [&](std::size_t j) NF_INLINE_ATTR {
    if (j >= blocks) return hn::Zero(di);
    const std::byte* at = row + j * S::kBlock.cols * kItemSize<T>;
    auto largest = Magnitudes<T, kInputs>(di, LoadItems(di, at));
    for (std::size_t i = lanes; i < S::kBlock.cols; i += lanes) {
      largest = hn::Max(largest, Magnitudes<T, kInputs>(di, LoadItems(di, at + i * kItemSize<T>)));
    }
    return largest;
  };
  const auto two = [&](std::size_t j)
                       HWY_ATTR { return MergeMaxima<I>(di, measure(j), measure(j + 1)); };
  const auto four = [&](std::size_t j) NF_INLINE_ATTR {
    if constexpr (sizeof(I) == 4) return MergeMaxima<std::int64_t>(di, two(j), two(j + 2));
    return MergeMaxima<std::int32_t>(di, two(j), two(j + 2));
  };
  const auto group = [&](std::size_t j) NF_INLINE_ATTR {
    if constexpr (sizeof(I) == 4) return four(j);
    return MergeMaxima<std::int64_t>(di, four(j), four(j + 4));
  };
  const auto powers_of_two = [&](std::size_t j) NF_INLINE_ATTR {
    return j < blocks ? ReduceBlocks(di, group(j)) : hn::Zero(d128);
  };
  const hn::CappedTag<I, kGroup<S>> d;
  auto most = hn::Zero(d);
  for (std::size_t j = 0; j < RoundUp(blocks, kGroup<S>); j += hn::Lanes(d)) {
    const auto largest = JoinGroups(d, j, powers_of_two);
    hn::Store(largest, d, reinterpret_cast<I*>(batch.largest + j));
    most = hn::Max(most, largest);
  }
  batch.finite = hn::AllFalse(d, hn::Gt(most, hn::Set(d, static_cast<I>(kInfinityBits<T> - 1))));
}

/// Addresses of a strip's codes and of a second copy of them, or null.
template <std::size_t kRows>
struct StripCodes : StripRows<kRows, std::byte> {
  std::byte* copy[kRows];
};

/// Supplies EncodeRun with the scales of a vector that covers several blocks, from `first` on.
/// Requires: each sub-vector of items lies in one block.
template <Scheme S, class T, class DF>
struct BlockScales {
  const Batch<S, T>& batch;
  std::size_t first;
  static constexpr std::size_t kItems = hn::MaxLanes(DF()) * sizeof(float) / kItemSize<T>;
  static_assert(S::kBlock.cols % kItems == 0);

  /// Returns the block of the i-th sub-vector, where lanes are `bytes` wide.
  HWY_INLINE std::size_t Block(std::size_t i, std::size_t bytes) const {
    return first + i / (bytes / kItemSize<T>)*kItems / S::kBlock.cols;
  }
  HWY_INLINE hn::Vec<DF> operator()(std::size_t i) const {
    return batch.Scale(DF(), Block(i, sizeof(float))).scale;
  }
};
/// Supplies EncodeRun with power-of-two scales in the same way.
template <Scheme S, class T, class DF>
struct BlocksPowerOfTwo {
  BlockScales<S, T, DF> of;
  HWY_INLINE auto Floor(std::size_t i) const {
    return of.batch.PowersOfTwo(DF(), of.Block(i, sizeof(FloorBits<T>))).floor;
  }
  HWY_INLINE hn::Vec<DF> Multiplier(std::size_t i) const {
    return of.batch.PowersOfTwo(DF(), of.Block(i, sizeof(float))).multiplier;
  }
};

/// Encodes `blocks` blocks of each row of a strip. Requires: `batch` holds their scales.
/// Blocks shorter than a vector are encoded several at a time, so that vectors are full.
template <Scheme S, class T, Inputs kInputs, bool kPowersOfTwo>
HWY_INLINE void EncodeBlocks(const StripRows<S::kBlock.rows, const std::byte>& in,
                             std::size_t blocks, const Batch<S, T>& batch,
                             const StripCodes<S::kBlock.rows>& out,
                             StagedWriter<kRunCols<S>>& writer) {
  using F = typename S::Element;
  constexpr std::size_t kCols = S::kBlock.cols, kPerVector = hn::MaxLanes(D8()) / kCols;
  const hn::CappedTag<std::uint8_t, kCols> d_block;
  const D8 d8;
  for (std::size_t r = 0; r < in.count; ++r) {
    const VectorWriter codes = writer.Open(d8, out.row[r]);
    const VectorWriter copy = writer.OpenCopy(d8, codes, out.copy[r]);
    const auto put = [&](auto d, std::size_t i, const auto& scale) NF_INLINE_ATTR {
      if (in.next[r] != nullptr)
        PrefetchBytes(in.next[r] + i * kItemSize<T>, hn::Lanes(d) * kItemSize<T>);
      const auto run = EncodeRun<F, T, kInputs>(d, in.row[r] + i * kItemSize<T>, scale);
      codes.Put(d, run, i);
      if (copy.to != nullptr) copy.Put(d, run, i);
    };
    std::size_t j = 0;
    if constexpr (kPerVector > 1) {
      for (; j + kPerVector <= blocks; j += kPerVector) {
        const BlockScales<S, T, DF> scales{batch, j};
        if constexpr (kPowersOfTwo) put(d8, j * kCols, BlocksPowerOfTwo<S, T, DF>{scales});
        if constexpr (!kPowersOfTwo) put(d8, j * kCols, scales);
      }
    }
    for (; j < blocks; ++j) {
      using DB = hn::Repartition<float, decltype(d_block)>;
      const auto scale = [&]() NF_INLINE_ATTR {
        if constexpr (kPowersOfTwo) return batch.PowersOfTwo(DB(), j);
        if constexpr (!kPowersOfTwo) return batch.Scale(DB(), j);
      }();
      for (std::size_t i = 0; i < kCols; i += hn::Lanes(d_block))
        put(d_block, j * kCols + i, scale);
    }
    writer.Close(codes, out.row[r], blocks * kCols, out.copy[r]);
  }
}

/// Rows of a batch that fit in the first-level cache together.
template <class T>
inline constexpr std::size_t kRowsPerPass = 16 / kItemSize<T>;

/// Updates the maxima of columns with `count` rows; `first` starts them at 0. Returns the largest
/// pattern of all. Requires: `cols` is a multiple of the vector's length, or of kMaxBytes if that
/// is less; count <= kRowsPerPass.
template <class T, Inputs kInputs, std::size_t kMaxBytes = HWY_MAX_BYTES>
HWY_INLINE std::uint32_t ColumnMaximaOfPass(const std::byte* const* rows, std::size_t count,
                                            std::size_t cols, bool first,
                                            std::make_signed_t<BitsOf<T>>* maxima) {
  const MagnitudeTag<T, kMaxBytes> di;
  auto most = hn::Zero(di);
  for (std::size_t c = 0; c < cols; c += hn::Lanes(di)) {
    auto largest = first ? hn::Zero(di) : hn::LoadU(di, maxima + c);
    const auto fold = [&](std::size_t row) NF_INLINE_ATTR {
      const auto items = LoadItems(di, rows[row] + c * kItemSize<T>);
      largest = hn::Max(largest, Magnitudes<T, kInputs>(di, items));
    };
    if (count == kRowsPerPass<T>) {
      for (std::size_t i = 0; i < kRowsPerPass<T>; ++i) fold(i);
    } else {
      for (std::size_t i = 0; i < count; ++i) fold(i);
    }
    hn::StoreU(largest, di, maxima + c);
    most = hn::Max(most, largest);
  }
  return LargestLane(di, most);
}

/// Does the same for any number of rows.
template <class T, Inputs kInputs, std::size_t kMaxBytes = HWY_MAX_BYTES>
HWY_INLINE std::uint32_t ColumnMaxima(const std::byte* const* rows, std::size_t count,
                                      std::size_t cols, std::make_signed_t<BitsOf<T>>* maxima) {
  std::uint32_t most = 0;
  for (std::size_t r = 0; r < count; r += kRowsPerPass<T>) {
    const std::size_t some = std::min(kRowsPerPass<T>, count - r);
    most = std::max(
        most, ColumnMaximaOfPass<T, kInputs, kMaxBytes>(rows + r, some, cols, r == 0, maxima));
  }
  return most;
}

/// Computes the amaxes of a strip's blocks. Blocks of several rows: takes the maxima of columns
/// first, then those of one row of maxima.
template <Scheme S, class T, Inputs kInputs>
HWY_INLINE void ComputeStripAmaxes(const StripRows<S::kBlock.rows, const std::byte>& in,
                                   std::size_t blocks, Batch<S, T>& batch) {
  if constexpr (S::kBlock.rows == 1) {
    ComputeBlockAmaxes<S, T, kInputs>(in.row[0], blocks, batch);
  } else {
    alignas(64) std::make_signed_t<BitsOf<T>> maxima[kBatchCols];
    ColumnMaxima<T, kInputs, S::kBlock.cols>(in.row, in.count, blocks * S::kBlock.cols, maxima);
    ComputeBlockAmaxes<S, T, kInputs>(reinterpret_cast<const std::byte*>(maxima), blocks, batch);
  }
}

/// Quantizes `blocks` whole blocks of a strip. A block's scale keeps its finite items within the
/// format, so only infinities and NaN need Inputs::kAll.
template <Scheme S, class T>
HWY_INLINE void QuantizeBatch(const StripRows<S::kBlock.rows, const std::byte>& in,
                              std::size_t blocks, const typename S::TensorState& state,
                              Batch<S, T>& batch, const StripCodes<S::kBlock.rows>& out,
                              StagedWriter<kRunCols<S>>& writer) {
  ComputeStripAmaxes<S, T, Inputs::kFinite>(in, blocks, batch);
  if (batch.finite) {
    batch.ComputeScales(state, blocks);
    if (batch.powers_of_two) {
      return EncodeBlocks<S, T, Inputs::kFinite, true>(in, blocks, batch, out, writer);
    }
    EncodeBlocks<S, T, Inputs::kFinite, false>(in, blocks, batch, out, writer);
  } else {
    ComputeStripAmaxes<S, T, Inputs::kAll>(in, blocks, batch);
    batch.ComputeScales(state, blocks);
    EncodeBlocks<S, T, Inputs::kAll, false>(in, blocks, batch, out, writer);
  }
}

/// Quantizes one block of fewer than kBlock.cols columns, padded with zeros.
template <Scheme S, class T>
HWY_NOINLINE void QuantizeShort(const StripRows<S::kBlock.rows, const std::byte>& in,
                                std::size_t cols, const typename S::TensorState& state,
                                Batch<S, T>& batch, const StripCodes<S::kBlock.rows>& out) {
  constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;
  ZeroPadded<T, kCols> padded[kRows];
  std::byte codes[kRows][kCols];
  StripRows<kRows, const std::byte> staged_in{};
  StripCodes<kRows> staged_out{};
  staged_in.count = staged_out.count = in.count;
  for (std::size_t r = 0; r < in.count; ++r) {
    padded[r].Fill(in.row[r], cols);
    staged_in.row[r] = padded[r].items;
    staged_out.row[r] = codes[r];
  }
  StagedWriter<kRunCols<S>> in_place(false);
  QuantizeBatch<S, T>(staged_in, 1, state, batch, staged_out, in_place);
  for (std::size_t r = 0; r < in.count; ++r) {
    std::memcpy(out.row[r], codes[r], cols);
    if (out.copy[r] != nullptr) std::memcpy(out.copy[r], codes[r], cols);
  }
}

/// Cuts the tile into strips of kBlock.rows rows, and strips into batches. Writes codes to `codes`
/// and, if it is not null, to `copy`. Calls finish(row, rows, col, cols, batch) after the codes of
/// each batch are written.
template <Scheme S, class T, class Finish>
HWY_INLINE void ForEachBatch(const QuantizeArgs& args, const DirectionBuffers<std::byte>& codes,
                             const DirectionBuffers<std::byte>* copy, Finish&& finish) {
  constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;
  const typename S::TensorState state = S::Prepare(codes.amax, args.options);
  const Tile& tile = args.tile;
  const std::size_t ahead = std::min(kRunCols<S>, tile.col_end - tile.col_begin);
  StagedWriter<kRunCols<S>> writer(args.nontemporal);
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
    StripRows<kRows, const std::byte> in;
    StripCodes<kRows> out;
    in.count = out.count = std::min(kRows, tile.row_end - row);
    for (std::size_t col = tile.col_begin; col < tile.col_end;) {
      const std::size_t left = tile.col_end - col;
      const std::size_t blocks = std::min(kBatch<S>, left / kCols);
      for (std::size_t r = 0; r < in.count; ++r) {
        in.row[r] = args.in.Row(row + r) + col * kItemSize<T>;
        out.row[r] = codes.codes + (row + r) * codes.code_stride + col;
        out.copy[r] = copy != nullptr ? copy->codes + (row + r) * copy->code_stride + col : nullptr;
      }
      Batch<S, T> batch;
      for (std::size_t r = 0; r < in.count; ++r) {
        in.next[r] = NextItems<T>(args, row + r, col + ahead, kRows);
      }
      if (blocks > 0) {
        QuantizeBatch<S, T>(in, blocks, state, batch, out, writer);
      } else {
        QuantizeShort<S, T>(in, left, state, batch, out);
      }
      const std::size_t cols = blocks > 0 ? blocks * kCols : left;
      finish(row, in.count, col, cols, batch);
      col += cols;
    }
  }
}

template <Scheme S, class T>
HWY_INLINE void StoreBatch(const DirectionBuffers<std::byte>& out, std::size_t row, std::size_t col,
                           std::size_t cols, const Batch<S, T>& batch) {
  const std::size_t line = out.strides.LineOffset(ScaleLine<S>(row));
  const std::size_t first = ScaleBlockIndex<S>(col), blocks = CeilDiv(cols, S::kBlock.cols);
  if (out.strides.BlocksAreAdjacent()) {
    return StoreScaleInvs<S>(out.scale_inv, line + first, batch.scale_inv, blocks);
  }
  for (std::size_t j = 0; j < blocks; ++j) {
    StoreScaleInv<S>(out.scale_inv, line + out.strides.BlockOffset(first + j), batch.scale_inv[j]);
  }
}

/// Stores the scales of rows. Where those of one block of successive rows are adjacent, gathers the
/// scales of kRows rows and stores whole lines: row by row, the lines of a row's blocks are often a
/// power of two apart, so that they evict each other from one set of the first-level cache.
template <Scheme S>
class RowScales {
 public:
  RowScales(const DirectionBuffers<std::byte>& out, const Tile& tile)
      : out_(out), first_(ScaleBlockIndex<S>(tile.col_begin)) {
    blocks_ = CeilDiv(tile.col_end, S::kBlock.cols) - first_;
    gathers_ = S::kLayout.lines_per_scale == 1 && out.strides.LinesAreAdjacent() &&
               !out.strides.BlocksAreAdjacent() && blocks_ <= kBlocks;
  }

  /// Takes the scales of `cols` columns of a row. Requires: rows in ascending order.
  template <class T>
  HWY_INLINE void Store(std::size_t row, std::size_t col, std::size_t cols,
                        const Batch<S, T>& batch) {
    if (!gathers_) return StoreBatch<S, T>(out_, row, col, cols, batch);
    const std::size_t first = ScaleBlockIndex<S>(col) - first_;
    for (std::size_t j = 0; j < CeilDiv(cols, S::kBlock.cols); ++j)
      StoreScaleInv<S>(gathered_[first + j], rows_, batch.scale_inv[j]);
  }
  /// Ends a row: writes what is gathered if it fills lines, or after the `is_last` row.
  HWY_INLINE void EndRow(std::size_t row, bool is_last) {
    if (!gathers_ || (++rows_ < kRows && !is_last)) return;
    const std::size_t line = out_.strides.LineOffset(ScaleLine<S>(row + 1 - rows_));
    for (std::size_t j = 0; j < blocks_; ++j) {
      const std::size_t item = line + out_.strides.BlockOffset(first_ + j);
      CopyBytes(gathered_[j], rows_ * kScaleBytes<S>, out_.scale_inv + item * kScaleBytes<S>);
    }
    rows_ = 0;
  }

 private:
  static constexpr std::size_t kRows = kLine / kScaleBytes<S>, kBlocks = 64;

  const DirectionBuffers<std::byte>& out_;
  std::size_t first_, blocks_, rows_ = 0;
  bool gathers_;
  alignas(64) std::byte gathered_[kBlocks][kLine];  // by block
};

/// Quantizes blocks of one row, rowwise.
template <class S, class T>
struct QuantizeRows {
  static void Run(const QuantizeArgs& args) noexcept {
    const Tile& tile = args.tile;
    RowScales<S> scales(args.rowwise, tile);
    ForEachBatch<S, T>(args, args.rowwise, nullptr,
                       [&](std::size_t row, std::size_t /*rows*/, std::size_t col, std::size_t cols,
                           const Batch<S, T>& batch) NF_INLINE_ATTR {
                         scales.Store(row, col, cols, batch);
                         if (col + cols == tile.col_end)
                           scales.EndRow(row, row + 1 == tile.row_end);
                       });
  }
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
