// SPDX-License-Identifier: Apache-2.0
// Dequantizes codes that keep the input's orientation, and transposed ones.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"
#include "narrowfloat/schemes/nvfp4.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

constexpr std::size_t kRunItems = 1024;  // items that are decoded at a time

/// True if PowerOfTwoDecoder16 can decode S to T under some scales.
template <class S, class T>
inline constexpr bool kMayDecode16 = kItemSize<T> == 2 && ByteScheme<S>;

struct NoDecoder16 {};

/// True if a scale of S is decoded as NVFP4's are: from E4M3, with two factors of the tensor.
template <class S>
constexpr bool HasTwoFactors() {
  if constexpr (std::is_base_of_v<Nvfp4Rule<S::kBlock>, S>) {
    return &S::DecodeScale == &Nvfp4Rule<S::kBlock>::DecodeScale;
  } else {
    return false;
  }
}

/// Decodes stored scales.
template <class S>
class ScaleDecoder {
 public:
  explicit ScaleDecoder(const DequantizeArgs& args) : in_(args.in), options_(args.options) {
    state_ = S::Prepare(in_.amax, options_);
  }

  /// Decodes the scales of `count` blocks of a line.
  HWY_INLINE void DecodeLine(std::size_t line, std::size_t block, std::size_t count,
                             float* scales) {
    const std::size_t offset = in_.strides.LineOffset(ScaleLine<S>(line));
    const typename S::TensorState state = StateOf(line);
    if (in_.strides.BlocksAreAdjacent()) {
      DecodeAdjacent(in_.scale_inv + (offset + block) * kScaleBytes<S>, count, state, scales);
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        scales[i] = At(offset + in_.strides.BlockOffset(block + i), state);
      }
    }
  }
  /// Decodes the scales of `blocks` blocks of each of `lines` lines, line by line: gathers their
  /// bytes first, so that one loop decodes them.
  template <std::size_t kMost>
  HWY_INLINE void DecodeLines(std::size_t line, std::size_t lines, std::size_t block,
                              std::size_t blocks, float* scales) {
    static_assert(kScaleBytes<S> == 1);
    if (in_.line_amaxes != nullptr) {
      for (std::size_t l = 0; l < lines; ++l)
        DecodeLine(line + l, block, blocks, scales + l * blocks);
      return;
    }
    alignas(64) std::byte stored[kMost];
    const bool adjacent = in_.strides.BlocksAreAdjacent();
    for (std::size_t l = 0; l < lines; ++l) {
      const std::size_t offset = in_.strides.LineOffset(ScaleLine<S>(line + l));
      std::byte* to = stored + l * blocks;
      if (adjacent && blocks == sizeof(std::uint64_t)) {
        std::memcpy(to, in_.scale_inv + offset + block, sizeof(std::uint64_t));
      } else {
        for (std::size_t i = 0; i < blocks; ++i)
          to[i] = in_.scale_inv[offset + in_.strides.BlockOffset(block + i)];
      }
    }
    DecodeAdjacent(stored, lines * blocks, state_, scales);
  }
  /// Decodes the scales of one block position of `count` lines.
  HWY_INLINE void DecodeBlock(std::size_t block, std::size_t line, std::size_t count,
                              float* scales) {
    const std::size_t offset = in_.strides.BlockOffset(block);
    const bool adjacent = S::kLayout.lines_per_scale == 1 && in_.strides.LinesAreAdjacent();
    if (adjacent && in_.line_amaxes == nullptr) {
      for (std::size_t i = 0; i < count; ++i) scales[i] = At(offset + line + i, state_);
    } else {
      for (std::size_t i = 0; i < count; ++i) {
        scales[i] = At(offset + in_.strides.LineOffset(ScaleLine<S>(line + i)), StateOf(line + i));
      }
    }
  }

 private:
  HWY_INLINE typename S::TensorState StateOf(std::size_t line) const {
    return in_.line_amaxes == nullptr ? state_ : S::Prepare(in_.AmaxOf(line), options_);
  }
  /// Decodes adjacent scales: those of NVFP4 a vector at a time; the compiler vectorizes the loop
  /// for those of one binary power or float.
  static HWY_INLINE void DecodeAdjacent(const std::byte* stored, std::size_t count,
                                        const typename S::TensorState& state, float* scales) {
    std::size_t i = 0;
    if constexpr (HasTwoFactors<S>()) {
      const DF df;
      const auto amax = hn::Set(df, state.amax), decode = hn::Set(df, state.decode);
      for (; i + 2 * hn::Lanes(df) <= count; i += 2 * hn::Lanes(df)) {
        hn::Vec<DF> low, high;
        DecodeCodes<typename S::Scale>(reinterpret_cast<const std::uint8_t*>(stored) + i, low,
                                       high);
        hn::StoreU(hn::Mul(hn::Mul(low, amax), decode), df, scales + i);
        hn::StoreU(hn::Mul(hn::Mul(high, amax), decode), df, scales + i + hn::Lanes(df));
      }
    }
    for (; i < count; ++i) scales[i] = S::DecodeScale(LoadScaleInv<S>(stored, i), state);
  }
  HWY_INLINE float At(std::size_t item, const typename S::TensorState& state) const {
    return S::DecodeScale(LoadScaleInv<S>(in_.scale_inv, item), state);
  }

  const DirectionBuffers<const std::byte>& in_;
  const ScaleOptions& options_;
  typename S::TensorState state_;
};

/// Decodes rows of up to kRunItems columns, each with its own scale.
template <class S, class T>
class StripDecoder {
 public:
  HWY_INLINE void Load(ScaleDecoder<S>& scales, std::size_t row, std::size_t col,
                       std::size_t cols) {
    scales.DecodeBlock(ScaleBlockIndex<S>(row), col, cols, scales_);
    if constexpr (kMayDecode16<S, T>) {
      std::uint32_t slow = 0;
      for (std::size_t i = 0; i < cols; ++i) slow |= Decoder16::NeedsSlowPath(scales_[i]);
      regular_ = slow == 0;
      for (std::size_t i = 0; i < cols; ++i) powers_[i] = Decoder16::Power(scales_[i]);
    }
  }

  HWY_INLINE void Decode(const std::byte* codes, std::size_t cols, const VectorWriter& out) const {
    if constexpr (kMayDecode16<S, T>) {
      const D16 d16;
      const auto power_at = [&](std::size_t i)
                                NF_INLINE_ATTR { return hn::LoadU(d16, powers_ + i); };
      if (regular_ && decoder16_.Decode(codes, cols, power_at, out)) return;
    }
    DecodeAnyRow<F, T>(
        codes, cols, [&](std::size_t i) NF_INLINE_ATTR { return LaneScales<DF>{scales_ + i}; },
        out);
  }

 private:
  using F = typename S::Element;
  using Decoder16 = std::conditional_t<kMayDecode16<S, T>, PowerOfTwoDecoder16<F, T>, NoDecoder16>;

  float scales_[kRunItems + kMaxRun] = {};  // the last step reads past the run
  std::uint16_t powers_[kRunItems + HWY_MAX_BYTES] = {};
  bool regular_ = false;
  Decoder16 decoder16_;
};

/// Decodes up to kRunItems items of blocks along a row.
template <class S, class T>
class BlockDecoder {
 public:
  static_assert(kRunItems % S::kBlock.cols == 0);

  HWY_INLINE void Load(ScaleDecoder<S>& scales, std::size_t row, std::size_t col,
                       std::size_t cols) {
    scales.DecodeLine(row, ScaleBlockIndex<S>(col), CeilDiv(cols, S::kBlock.cols), loaded_);
  }

  /// Uses scales that another one decoded: of the first block and of those behind it.
  HWY_INLINE void Use(const float* scales) { scales_ = scales; }

  /// Returns true if DecodePacked serves `count` scales: they are finite, and the instruction set
  /// has a lookup for the format and the type.
  static HWY_INLINE bool HasLookup([[maybe_unused]] const float* scales,
                                   [[maybe_unused]] std::size_t count) {
#if HWY_TARGET <= HWY_AVX3
    if constexpr (kLooksUp) {
      std::uint32_t largest = 0;
      for (std::size_t i = 0; i < count; ++i)
        largest = std::max(largest, std::bit_cast<std::uint32_t>(scales[i]) & ~kFloatSign);
      return largest < kFloatInfinity;
    }
#endif
    return false;
  }
  HWY_INLINE bool HasLookup(std::size_t cols) const {
    return HasLookup(scales_, CeilDiv(cols, S::kBlock.cols));
  }

  /// Decodes packed E2M1 codes to bfloat16 by lookup. Returns false and writes nothing for odd
  /// numbers of blocks. Requires: HasLookup was true.
  HWY_INLINE bool DecodePacked([[maybe_unused]] const std::byte* packed,
                               [[maybe_unused]] std::size_t cols,
                               [[maybe_unused]] const VectorWriter& out) const {
#if HWY_TARGET <= HWY_AVX3
    if constexpr (kLooksUp) {
      const hn::Full512<std::uint16_t> d16;
      if (cols % hn::Lanes(d16) != 0) return false;
      const auto* codes = reinterpret_cast<const std::uint8_t*>(packed);
      for (std::size_t i = 0; i < cols; i += hn::Lanes(d16)) {
        out.Put(d16, DecodeTwoBlocks(codes + i / 2, scales_ + i / S::kBlock.cols),
                i * kItemSize<T>);
      }
      return true;
    }
#endif
    return false;
  }

  HWY_INLINE void Decode(const std::byte* codes, std::size_t cols, const VectorWriter& out) const {
    if constexpr (kMayDecode16<S, T>) {
      if (DecodePowers(codes, cols, out) || DecodeByBlocks(codes, cols, out)) return;
    }
    const auto scale_at = [&](std::size_t i) NF_INLINE_ATTR {
      return [this, i](std::size_t k) NF_INLINE_ATTR {
        return SpreadScales<S::kBlock.cols>(DF(), scales_, i + k * hn::Lanes(DF()));
      };
    };
    DecodeAnyRow<F, T>(codes, cols, scale_at, out);
  }

 private:
  using F = typename S::Element;
  using Decoder16 = std::conditional_t<kMayDecode16<S, T>, PowerOfTwoDecoder16<F, T>, NoDecoder16>;

  HWY_INLINE bool DecodePowers(const std::byte* codes, std::size_t cols,
                               const VectorWriter& out) const {
    static_assert(S::kBlock.cols % hn::MaxLanes(D16()) == 0);
    std::uint16_t powers[kRunItems / S::kBlock.cols + 1];
    std::uint32_t slow = 0;
    for (std::size_t i = 0; i * S::kBlock.cols < cols; ++i) {
      slow |= Decoder16::NeedsSlowPath(scales_[i]);
      powers[i] = Decoder16::Power(scales_[i]);
    }
    return slow == 0 && decoder16_.Decode(
                            codes, cols,
                            [&](std::size_t i) NF_INLINE_ATTR {
                              return hn::Set(D16(), powers[i / S::kBlock.cols]);
                            },
                            out);
  }

  /// Decodes long blocks, each by a table for its scale. Returns false if one has none, or a code
  /// is not finite; the items are then undefined.
  HWY_INLINE bool DecodeByBlocks([[maybe_unused]] const std::byte* codes,
                                 [[maybe_unused]] std::size_t cols,
                                 [[maybe_unused]] const VectorWriter& out) const {
    constexpr std::size_t kItems = S::kBlock.cols;
    if constexpr (kItems >= 64) {
      for (std::size_t i = 0; i < cols; i += kItems) {
        const UniformDecoder16<F, T> decoder(scales_[i / kItems]);
        if (!decoder.Decode(codes + i, std::min(kItems, cols - i), out.From(i * kItemSize<T>)))
          return false;
      }
      return true;
    }
    return false;
  }

  static constexpr bool kLooksUp =
      std::is_same_v<F, E2M1> && S::kBlock.cols == 16 && std::is_same_v<T, BFloat16>;

  float loaded_[kRunItems / S::kBlock.cols + kMaxRun] = {};  // the last step reads past the run
  const float* scales_ = loaded_;
  Decoder16 decoder16_;
};

/// Decodes codes under one scale.
template <FloatFormat F, class T>
class WholeDecoder {
 public:
  explicit WholeDecoder(float scale) : scale_(scale), decoder16_(scale) {}

  HWY_INLINE void Decode(const std::byte* codes, std::size_t count, const VectorWriter& out) const {
    if (decoder16_.Decode(codes, count, out)) return;
    DecodeAnyRow<F, T>(codes, count, scale_, out);
  }

 private:
  /// fp32 is always decoded by DecodeAnyRow.
  struct None {
    explicit None(float) {}
    bool Decode(const std::byte*, std::size_t, const VectorWriter&) const { return false; }
  };
  float scale_;
  std::conditional_t<kItemSize<T> == 2, UniformDecoder16<F, T>, None> decoder16_;
};

template <class S>
float TensorScale(const DequantizeArgs& args) {
  return S::DecodeScale(LoadScaleInv<S>(args.in.scale_inv, 0),
                        S::Prepare(args.in.amax, args.options));
}

template <class S, class T>
struct DequantizeColumns {
  static void Run(const DequantizeArgs& args) noexcept {
    constexpr std::size_t kRows = S::kBlock.cols;  // of the transposed block
    const Tile& tile = args.tile;
    StagedWriter<kRunItems * kItemSize<T> > writer(args.nontemporal);
    ScaleDecoder<S> scales(args);
    StripDecoder<S, T> strip;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kRows) {
      const std::size_t row_end = std::min(row + kRows, tile.row_end);
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kRunItems) {
        const std::size_t cols = std::min(kRunItems, tile.col_end - col);
        strip.Load(scales, row, col, cols);
        for (std::size_t r = row; r < row_end; ++r) {
          std::byte* out = args.out.Row(r) + col * kItemSize<T>;
          const VectorWriter items = writer.Open(D8(), out);
          PrefetchBytes(Ahead(args, row, row_end, r, col), cols);
          strip.Decode(args.in.codes + r * args.in.code_stride + col, cols, items);
          writer.Close(items, out, cols * kItemSize<T>);
        }
      }
    }
  }

 private:
  static constexpr std::size_t kAhead = 8;  // rows

  /// Returns the codes that are decoded kAhead rows after row r of the strip that begins at `row`
  /// and `col`: they lie in it, in the next one of the same rows, or in the first one below.
  /// Processors do not prefetch them by themselves: each row of a strip lies in other pages.
  static HWY_INLINE const std::byte* Ahead(const DequantizeArgs& args, std::size_t row,
                                           std::size_t row_end, std::size_t r, std::size_t col) {
    const auto codes_at = [&](std::size_t line, std::size_t first) {
      return args.in.codes + std::min(line, args.shape.rows - 1) * args.in.code_stride + first;
    };
    if (r + kAhead < row_end) return codes_at(r + kAhead, col);
    const std::size_t next = r + kAhead - row_end;
    const bool is_last = col + kRunItems >= args.tile.col_end;
    return is_last ? codes_at(row_end + next, args.tile.col_begin)
                   : codes_at(row + next, col + kRunItems);
  }
};

/// Dequantizes blocks along rows.
template <class S, class T>
struct DequantizeBlocks {
  static void Run(const DequantizeArgs& args) noexcept {
    const DirectionBuffers<const std::byte>& in = args.in;
    const Tile& tile = args.tile;
    StagedWriter<kRunItems * kItemSize<T> > writer(args.nontemporal);
    ScaleDecoder<S> scales(args);
    BlockDecoder<S, T> decoder;
    alignas(64) std::byte unpacked[kRunItems];
    for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kRunItems) {
        const std::size_t cols = std::min(kRunItems, tile.col_end - col);
        std::byte* out = args.out.Row(r) + col * kItemSize<T>;
        const std::byte* codes = in.codes + r * in.code_stride + col / kCodesPerByte<S>;
        decoder.Load(scales, r, col, cols);
        const VectorWriter items = writer.Open(D8(), out);
        if constexpr (ByteScheme<S>) {
          decoder.Decode(codes, cols, items);
        } else if (!(decoder.HasLookup(cols) && decoder.DecodePacked(codes, cols, items))) {
          UnpackCodes(codes, cols, unpacked);
          decoder.Decode(unpacked, cols, items);
        }
        writer.Close(items, out, cols * kItemSize<T>);
      }
    }
  }
};

template <class S, class T>
struct DequantizeWhole {
  static void Run(const DequantizeArgs& args) noexcept {
    const DirectionBuffers<const std::byte>& in = args.in;
    const Tile& tile = args.tile;
    const WholeDecoder<typename S::Element, T> decoder(TensorScale<S>(args));
    StagedWriter<kRunItems * kItemSize<T> > writer(args.nontemporal);
    const auto decode_row = [&](const std::byte* codes, std::size_t count,
                                std::byte* items) NF_INLINE_ATTR {
      // The first run ends at a cache line, as in QuantizeWhole.
      const std::size_t head = args.nontemporal ? BytesToLine(items) / kItemSize<T> : 0;
      for (std::size_t i = 0, run_items; i < count; i += run_items) {
        std::byte* out = items + i * kItemSize<T>;
        run_items = std::min(i < head ? head : kRunItems, count - i);
        const VectorWriter opened = writer.Open(D8(), out);
        decoder.Decode(codes + i, run_items, opened);
        writer.Close(opened, out, run_items * kItemSize<T>);
      }
    };
    const std::size_t cols = tile.col_end - tile.col_begin, rows = tile.row_end - tile.row_begin;
    if (args.out.IsContiguous(cols * kItemSize<T>) && in.code_stride == cols) {
      return decode_row(in.codes + tile.row_begin * cols, rows * cols,
                        args.out.Row(tile.row_begin));
    }
    for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
      decode_row(in.codes + r * in.code_stride + tile.col_begin, cols,
                 args.out.Row(r) + tile.col_begin * kItemSize<T>);
    }
  }
};

/// Copies a patch of transposed codes, padded with zeros so that whole squares can be read.
HWY_INLINE void StagePatch(const std::byte* codes, std::size_t stride, std::size_t rows,
                           std::size_t cols, std::byte* staged) {
  if (rows < kPatchRows || cols < kPatchCols) std::memset(staged, 0, kPatchRows * kPatchCols);
  for (std::size_t c = 0; c < cols; ++c)
    CopyBytes(codes + c * stride, rows, staged + c * kPatchRows);
}

/// Decodes the rows of a patch.
template <class S, class T>
class PatchDecoder {
 public:
  explicit PatchDecoder(const DequantizeArgs& args) : scales_(args) {}

  HWY_INLINE void Decode(std::size_t row, std::size_t col, const std::byte* codes, std::size_t cols,
                         const VectorWriter& out) {
    if (row % S::kBlock.cols == 0) {  // of the transposed block
      strip_.Load(scales_, row, col, cols);
    }
    strip_.Decode(codes, cols, out);
  }

 private:
  ScaleDecoder<S> scales_;
  StripDecoder<S, T> strip_;
};
template <WholeTensorScheme S, class T>
class PatchDecoder<S, T> {
 public:
  explicit PatchDecoder(const DequantizeArgs& args) : decoder_(TensorScale<S>(args)) {}

  HWY_INLINE void Decode(std::size_t /*row*/, std::size_t /*col*/, const std::byte* codes,
                         std::size_t cols, const VectorWriter& out) {
    decoder_.Decode(codes, cols, out);
  }

 private:
  WholeDecoder<typename S::Element, T> decoder_;
};

/// Returns the transposed codes of the patch after that of row r and column c: right of it or, at
/// the tile's last column, below its first one.
template <class S>
const std::byte* NextPatch(const DequantizeArgs& args, std::size_t r, std::size_t rows,
                           std::size_t c, std::size_t cols) {
  const bool is_last = c + cols >= args.tile.col_end;
  const std::size_t col = is_last ? args.tile.col_begin : c + cols;
  const std::size_t row = is_last && r + rows < args.tile.row_end ? r + rows : r;
  return args.in.codes + col * args.in.code_stride + row / kCodesPerByte<S>;
}

template <class S, class T>
struct DequantizeTransposed {
  static constexpr std::size_t kItems = kPatchRows * kCodesPerByte<S>;  // of a patch's column

  static void Run(const DequantizeArgs& args) noexcept {
    const DirectionBuffers<const std::byte>& in = args.in;
    const Tile& tile = args.tile;
    PatchDecoder<S, T> decoder(args);
    StagedWriter<kPatchCols * kItemSize<T> > writer(args.nontemporal);
    alignas(64) std::byte staged[kPatchRows * kPatchCols];
    alignas(64) std::byte patch[kPatchRows * kPatchCols];
    for (std::size_t r = tile.row_begin; r < tile.row_end; r += kItems) {
      const std::size_t rows = std::min(kItems, tile.row_end - r);
      for (std::size_t c = tile.col_begin; c < tile.col_end; c += kPatchCols) {
        const std::size_t cols = std::min(kPatchCols, tile.col_end - c);
        const std::byte* codes = in.codes + c * in.code_stride + r / kCodesPerByte<S>;
        StagePatch(codes, in.code_stride, rows / kCodesPerByte<S>, cols, staged);
        TransposeInCache(staged, patch);
        const std::byte* next = NextPatch<S>(args, r, kItems, c, kPatchCols);
        for (std::size_t i = 0; i < rows; ++i) {
          // Spread over the rows: all at once, they would wait for each other.
          if (i % kCodesPerByte<S> == 0)
            PrefetchBytes(next + i / kCodesPerByte<S> * in.code_stride, kPatchRows);
          std::byte* out = args.out.Row(r + i) + c * kItemSize<T>;
          const VectorWriter items = writer.Open(D8(), out);
          decoder.Decode(r + i, c, RowOf(patch, i, staged), cols, items);
          writer.Close(items, out, cols * kItemSize<T>);
        }
      }
    }
  }

  /// Returns the codes of a patch's row, one per byte: in place, or unpacked to `unpacked`.
  static const std::byte* RowOf(const std::byte* patch, std::size_t row, std::byte* unpacked) {
    if constexpr (ByteScheme<S>) {
      return patch + row * kPatchCols;
    } else {
      SplitCodes(patch + row / 2 * kPatchCols, kPatchCols, row % 2 != 0, unpacked);
      return unpacked;
    }
  }

  static void TransposeInCache(const std::byte* in, std::byte* out) {
    for (std::size_t c = 0; c < kPatchCols; c += hn::Lanes(D8Squares())) {
      for (std::size_t r = 0; r < kPatchRows; r += kSquareSide) {
        TransposeSquares(reinterpret_cast<const std::uint8_t*>(in) + c * kPatchRows + r, kPatchRows,
                         reinterpret_cast<std::uint8_t*>(out) + r * kPatchCols + c, kPatchCols);
      }
    }
  }
};

/// Decodes packed codes to 16-bit items along their own lines, where a line's scales serve whole
/// blocks, and transposes the items: with a scale in each lane, decoding took up to twice as long.
template <class S, class T>
struct DequantizePackedTransposed {
  static_assert(kCodesPerByte<S> == 2 && kItemSize<T> == 2);
  static constexpr std::size_t kSide = 128;  // of a patch

  static void Run(const DequantizeArgs& args) noexcept {
    const DirectionBuffers<const std::byte>& in = args.in;
    const Tile& tile = args.tile;
    ScaleDecoder<S> scales(args);
    BlockDecoder<S, T> decoder;
    alignas(64) std::uint16_t items[kSide][kSide] = {};  // by column
    alignas(64) std::uint16_t turned[kSideOf<std::uint16_t>][kSide];
    alignas(64) float decoded[kScales + kMaxRun] = {};  // the last step reads past the run
    for (std::size_t r = tile.row_begin; r < tile.row_end; r += kSide) {
      const std::size_t rows = std::min(kSide, tile.row_end - r);
      for (std::size_t c = tile.col_begin; c < tile.col_end; c += kSide) {
        const std::size_t cols = std::min(kSide, tile.col_end - c);
        const std::byte* next = NextPatch<S>(args, r, kSide, c, kSide);
        const std::size_t blocks = CeilDiv(rows, S::kBlock.cols);
        scales.template DecodeLines<kScales>(c, cols, ScaleBlockIndex<S>(r), blocks, decoded);
        const bool has_lookup = BlockDecoder<S, T>::HasLookup(decoded, cols * blocks);
        for (std::size_t i = 0; i < cols; ++i) {
          decoder.Use(decoded + i * blocks);
          DecodeLine(decoder, has_lookup, in.codes + (c + i) * in.code_stride + r / 2, rows,
                     items[i]);
          PrefetchBytes(next + i * in.code_stride, kSide / 2);
        }
        for (std::size_t i = 0; i < rows; i += kSideOf<std::uint16_t>) {
          for (std::size_t col = 0; col < cols; col += hn::Lanes(D16()))
            TransposeSquares(items[col] + i, kSide, turned[0] + col, kSide);
          for (std::size_t k = 0; k < std::min(kSideOf<std::uint16_t>, rows - i); ++k) {
            CopyRun(reinterpret_cast<const std::byte*>(turned[k]), cols * kItemSize<T>,
                    args.out.Row(r + i + k) + c * kItemSize<T>, args.nontemporal);
          }
        }
      }
    }
    if (args.nontemporal) hwy::FlushStream();
  }

 private:
  static constexpr std::size_t kScales = kSide * kSide / S::kBlock.cols;  // of a patch

  static HWY_INLINE void DecodeLine(const BlockDecoder<S, T>& decoder, bool has_lookup,
                                    const std::byte* codes, std::size_t count,
                                    std::uint16_t* items) {
    const VectorWriter out{reinterpret_cast<std::uint8_t*>(items), false};
    if (has_lookup && decoder.DecodePacked(codes, count, out)) return;
    alignas(64) std::byte unpacked[kSide];
    UnpackCodes(codes, count, unpacked);
    decoder.Decode(unpacked, count, out);
  }
};

template <class S, class... T>
constexpr ByType<DequantizeFn> Rowwise(TypeList<T...>) {
  if constexpr (WholeTensorScheme<S>) {
    return {&DequantizeWhole<S, T>::Run...};
  } else {
    return {&DequantizeBlocks<S, T>::Run...};
  }
}

template <class S, class T>
constexpr DequantizeFn Transposed() {
  if constexpr (kCodesPerByte<S> == 2 && kItemSize<T> == 2) {
    return &DequantizePackedTransposed<S, T>::Run;
  } else {
    return &DequantizeTransposed<S, T>::Run;
  }
}
template <class S, class... T>
constexpr ByType<DequantizeFn> Columnwise(TypeList<T...>) {
  if constexpr (S::kLayout.columnwise_transposed) {
    return {Transposed<S, T>()...};
  } else {
    return {&DequantizeColumns<S, T>::Run...};
  }
}

template <class... S>
constexpr DequantizeSlots MakeTable(TypeList<S...>) {
  return {{{{Rowwise<S>(FloatTypes{}), Columnwise<S>(FloatTypes{}), {}}}...}};
}

}  // namespace

DequantizeSlots DequantizeTable() {
  return MakeTable(AllSchemes{});
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
