// SPDX-License-Identifier: Apache-2.0
// Blocks that run along rows: one row each (1x32) or several (32x32). Compiled once per instruction
// set.
#if defined(NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_BLOCKS_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kBatch = 32;  // blocks whose scales are computed together

/// Scales of up to kBatch blocks that follow each other in one panel.
template <Scheme S>
struct Batch {
  float amax[kBatch];
  float scale[kBatch];
  std::uint32_t scale_inv[kBatch];

  /// Branch-free schemes are vectorized here by the compiler: the loop has a constant length.
  HWY_INLINE void Decide(const typename S::TensorState& state) {
    for (std::size_t j = 0; j < kBatch; ++j) {
      const BlockScale decided = S::ScaleBlock(amax[j], state);
      scale[j] = decided.scale;
      scale_inv[j] = decided.scale_inv;
    }
  }
};

/// The rows of one panel, from the first column of a batch on. kRows is the height of a block.
template <std::size_t kRows, class Byte>
struct PanelRows {
  Byte* row[kRows];
  std::size_t count;
};

template <Scheme S, class T>
HWY_INLINE void MeasureBlocks(const PanelRows<S::kBlock.rows, const std::byte>& in,
                              std::size_t blocks, Batch<S>& batch) {
  using I = std::make_signed_t<BitsOf<T>>;
  const hn::CappedTag<I, S::kBlock.cols> di;
  const std::size_t lanes = hn::Lanes(di);
  for (std::size_t j = 0; j < blocks; ++j) {
    auto largest = hn::Zero(di);
    for (std::size_t r = 0; r < in.count; ++r) {
      const std::byte* at = in.row[r] + j * S::kBlock.cols * kItemSize<T>;
      for (std::size_t i = 0; i < S::kBlock.cols; i += lanes) {
        largest = hn::Max(largest, NumberMagnitudes<T>(di, LoadItems(di, at + i * kItemSize<T>)));
      }
    }
    const I bits = hn::GetLane(hn::MaxOfLanes(di, largest));
    batch.amax[j] = MagnitudeValue<T>(static_cast<BitsOf<T>>(bits));
  }
}

template <Scheme S, class T>
HWY_INLINE void EncodeBlocks(const PanelRows<S::kBlock.rows, const std::byte>& in,
                             std::size_t blocks, const Batch<S>& batch,
                             const PanelRows<S::kBlock.rows, std::byte>& out) {
  using F = typename S::Element;
  const hn::CappedTag<std::uint8_t, S::kBlock.cols> d8;
  using DF = hn::Repartition<float, decltype(d8)>;
  const std::size_t lanes = hn::Lanes(d8);
  for (std::size_t r = 0; r < in.count; ++r) {
    auto* codes = reinterpret_cast<std::uint8_t*>(out.row[r]);
    for (std::size_t j = 0; j < blocks; ++j) {
      const UniformScale<DF> scale{hn::Set(DF(), batch.scale[j])};
      for (std::size_t i = j * S::kBlock.cols; i < (j + 1) * S::kBlock.cols; i += lanes) {
        hn::StoreU(EncodeRun<F, T>(d8, in.row[r] + i * kItemSize<T>, scale), d8, codes + i);
      }
    }
  }
}

/// Quantizes `cols` columns of a panel, all blocks whole.
template <Scheme S, class T>
HWY_INLINE void QuantizeBatch(const PanelRows<S::kBlock.rows, const std::byte>& in,
                              std::size_t blocks, const typename S::TensorState& state,
                              Batch<S>& batch, const PanelRows<S::kBlock.rows, std::byte>& out) {
  MeasureBlocks<S, T>(in, blocks, batch);
  std::fill(batch.amax + blocks, batch.amax + kBatch, 0.0f);
  batch.Decide(state);
  EncodeBlocks<S, T>(in, blocks, batch, out);
}

/// The same for one block of fewer than kBlock.cols columns, as if padded with zeros.
template <Scheme S, class T>
HWY_NOINLINE void QuantizeShort(const PanelRows<S::kBlock.rows, const std::byte>& in,
                                std::size_t cols, const typename S::TensorState& state,
                                Batch<S>& batch, const PanelRows<S::kBlock.rows, std::byte>& out) {
  constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;
  Padded<T, kCols> padded[kRows];
  std::byte codes[kRows][kCols];
  PanelRows<kRows, const std::byte> staged_in;
  PanelRows<kRows, std::byte> staged_out;
  staged_in.count = staged_out.count = in.count;
  for (std::size_t r = 0; r < in.count; ++r) {
    padded[r].Fill(in.row[r], cols);
    staged_in.row[r] = padded[r].items;
    staged_out.row[r] = codes[r];
  }
  QuantizeBatch<S, T>(staged_in, 1, state, batch, staged_out);
  for (std::size_t r = 0; r < in.count; ++r) std::memcpy(out.row[r], codes[r], cols);
}

/// Cuts the tile into panels of kBlock.rows and those into batches. Codes go to `codes` rows;
/// `finish(row, rows, col, cols, batch)` sees each batch once its codes are written.
template <Scheme S, class T, class Finish>
HWY_INLINE void ForEachBatch(const QuantizeArgs& args, const DirectionBuffers<std::byte>& codes,
                             Finish&& finish) {
  constexpr std::size_t kRows = S::kBlock.rows, kCols = S::kBlock.cols;
  const typename S::TensorState state = S::Prepare(args.amax, args.options);
  const Tile& tile = args.tile;
  for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
    PanelRows<kRows, const std::byte> in;
    PanelRows<kRows, std::byte> out;
    in.count = out.count = std::min(kRows, tile.row_end - row);
    for (std::size_t col = tile.col_begin; col < tile.col_end;) {
      const std::size_t left = tile.col_end - col;
      const std::size_t blocks = std::min(kBatch, left / kCols);
      for (std::size_t r = 0; r < in.count; ++r) {
        in.row[r] = args.in.Row(row + r) + col * kItemSize<T>;
        out.row[r] = codes.codes + (row + r) * codes.code_stride + col;
      }
      Batch<S> batch;
      if (blocks > 0) {
        QuantizeBatch<S, T>(in, blocks, state, batch, out);
      } else {
        QuantizeShort<S, T>(in, left, state, batch, out);
      }
      const std::size_t cols = blocks > 0 ? blocks * kCols : left;
      finish(row, in.count, col, cols, batch);
      col += cols;
    }
  }
}

/// Blocks of one row, rowwise.
template <class S, class T>
struct QuantizeRows {
  static void Run(const QuantizeArgs& args) noexcept {
    const DirectionBuffers<std::byte>& out = args.rowwise;
    ForEachBatch<S, T>(args, out,
                       [&](std::size_t row, std::size_t /*rows*/, std::size_t col, std::size_t cols,
                           const Batch<S>& batch) HWY_ATTR {
                         const std::size_t line = out.strides.LineOffset(ScaleLine<S>(row));
                         const std::size_t first = ScaleBlockIndex<S>(col);
                         for (std::size_t j = 0; j * S::kBlock.cols < cols; ++j) {
                           StoreScaleInv<S>(out.scale_inv,
                                            line + out.strides.BlockOffset(first + j),
                                            batch.scale_inv[j]);
                         }
                       });
  }
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
