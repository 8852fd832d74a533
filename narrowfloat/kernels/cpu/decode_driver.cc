// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "hwy/cache_control.h"
#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/kernels/dcheck.h"

namespace narrowfloat::cpu {
namespace {

/// Decodes the scales of blocks and lines of a tensor.
class ScaleReader {
 public:
  ScaleReader(const DequantizeArgs& args, const DecodeKernels& kernels)
      : args_(args), kernels_(kernels) {}

  /// Returns the number of lines, of `blocks` blocks each, whose scales are read at once. It is 1
  /// or, if the scales of one line are far apart, at most the number of scales in a cache line:
  /// reads that miss the caches between two stores to a line are slow (docs/performance.md).
  std::size_t LinesOfBatch(std::size_t blocks) const {
    if (!lines_adjacent_ || blocks_adjacent_) return 1;
    return std::min(kDecodeCols / blocks, kLineBytes / bytes_);
  }

  /// Decodes the scales of `blocks` blocks of each of `lines` lines, line by line.
  /// Requires: at most kDecodeCols scales.
  void Read(std::size_t line, std::size_t lines, std::size_t block, std::size_t blocks,
            float* scales) const {
    if (in_.line_amaxes == nullptr) return Read(line, lines, block, blocks, factors_, scales);
    for (std::size_t i = 0; i < lines; ++i, scales += blocks)
      Read(line + i, 1, block, blocks, {in_.AmaxOf(line + i), factors_.decode}, scales);
  }

  /// Returns the address of the stored scales of Read, if they are adjacent. Else gathers them in
  /// `memory`, so that one call decodes all of them, and returns `memory`.
  const std::byte* Stored(std::size_t line, std::size_t lines, std::size_t block,
                          std::size_t blocks, std::byte* memory) const {
    if (lines == 1 ? blocks_adjacent_ : blocks == 1 && lines_adjacent_) return At(line, block);
    lines_adjacent_ ? GatherByBlocks(line, lines, block, blocks, memory)
                    : GatherByLines(line, lines, block, blocks, memory);
    return memory;
  }

  /// Decodes the scales of a patch of at most kDecodeSide lines, block by block, kDecodeSide floats
  /// apart. Requires: stored scales of one byte, one for each line and block; at most kPatchBlocks
  /// blocks.
  void ReadPatch(std::size_t line, std::size_t lines, std::size_t block, std::size_t blocks,
                 float* scales) {
    const std::size_t ahead =
        in_.strides.LineOffset(line + kDecodeSide) - in_.strides.LineOffset(line);
    for (std::size_t i = 0; i < lines; ++i) {
      const std::byte* from = At(line + i, block);
      hwy::Prefetch(from + ahead);  // scales of the patch to the right
      if (blocks_adjacent_) {
        CopyScales(from, blocks, patch_[i]);
      } else {
        for (std::size_t j = 0; j < blocks; ++j) patch_[i][j] = *At(line + i, block + j);
      }
    }
    if (in_.line_amaxes != nullptr) return DecodePatchByLines(line, lines, blocks, scales);
    kernels_.transpose_codes(patch_[0], sizeof patch_[0], blocks, turned_[0]);
    for (std::size_t j = 0; j < blocks; ++j)
      decode_(turned_[j], lines, factors_, scales + j * kDecodeSide);
  }

  /// Most blocks of a line of a patch.
  static constexpr std::size_t kPatchBlocks = kDecodeSide / ShortestDecodedBlock(4);

 private:
  /// Decodes the scales of a patch with one amax per line.
  void DecodePatchByLines(std::size_t line, std::size_t lines, std::size_t blocks,
                          float* scales) const {
    for (std::size_t i = 0; i < lines; ++i) {
      float of_line[kPatchBlocks];
      decode_(patch_[i], blocks, {in_.AmaxOf(line + i), factors_.decode}, of_line);
      for (std::size_t j = 0; j < blocks; ++j) scales[j * kDecodeSide + i] = of_line[j];
    }
  }
  void Read(std::size_t line, std::size_t lines, std::size_t block, std::size_t blocks,
            const ScaleFactors& factors, float* scales) const {
    alignas(kLineBytes) std::byte memory[kDecodeCols * sizeof(float)];
    decode_(Stored(line, lines, block, blocks, memory), lines * blocks, factors, scales);
  }
  /// Copies scales block by block, so that adjacent scales are read one after another.
  void GatherByBlocks(std::size_t line, std::size_t lines, std::size_t block, std::size_t blocks,
                      std::byte* stored) const {
    for (std::size_t j = 0; j < blocks; ++j) {
      const std::byte* from = At(line, block + j);
      hwy::Prefetch(from + lines * bytes_);  // scales of the next call
      for (std::size_t i = 0; i < lines; ++i)
        CopyScale(from + i * bytes_, bytes_, stored + (i * blocks + j) * bytes_);
    }
  }
  /// Copies scales line by line.
  void GatherByLines(std::size_t line, std::size_t lines, std::size_t block, std::size_t blocks,
                     std::byte* to) const {
    for (std::size_t i = 0; i < lines; ++i) {
      for (std::size_t j = 0; j < blocks; ++j, to += bytes_)
        CopyScale(At(line + i, block + j), bytes_, to);
    }
  }
  const std::byte* At(std::size_t line, std::size_t block) const {
    const ScaleStrides& strides = in_.strides;
    return in_.scale_inv +
           (strides.LineOffset(lines_.IndexOf(line)) + strides.BlockOffset(block)) * bytes_;
  }

  const DequantizeArgs& args_;
  const DecodeKernels& kernels_;
  const DirectionBuffers<const std::byte>& in_ = args_.in;
  const SchemeLayout& layout_ = kSchemes[args_.scheme].layout;
  const DecodeScalesFn decode_ = Of(kernels_.scales, layout_.scale_type);
  // The factors are read for E4M3 scales only.
  const ScaleFactors factors_{in_.amax, Nvfp4Scheme::Prepare(in_.amax, args_.options).decode};
  const std::size_t bytes_ = ScaleBytes(layout_.scale_type);
  const Length lines_{std::max<std::size_t>(layout_.lines_per_scale, 1)};  // lines per scale
  const bool blocks_adjacent_ = in_.strides.BlocksAreAdjacent();
  const bool lines_adjacent_ = lines_.items == 1 && in_.strides.LinesAreAdjacent();
  alignas(kLineBytes) std::byte patch_[kDecodeSide][2 * kPatchBlocks] = {};
  alignas(kLineBytes) std::byte turned_[2 * kPatchBlocks][kDecodeSide];
};

class DecodeDriver {
 public:
  DecodeDriver(const DequantizeArgs& args, const TargetParts& parts) : args_(args), parts_(parts) {}

  void Run() {
    if (is_whole_) scales_.Read(0, 1, 0, 1, column_scales_);
    if (args_.direction == Direction::kRowwise) return is_whole_ ? WholeRows() : BlockRows();
    scheme_.layout.columnwise_transposed ? Patches() : Columns();
  }

 private:
  /// Decodes a tile under one scale, as one row if its rows are adjacent.
  void WholeRows() {
    const std::size_t cols = tile_.col_end - tile_.col_begin;
    const std::size_t rows = tile_.row_end - tile_.row_begin;
    if (args_.out.IsContiguous(cols * item_bytes_) && in_.code_stride == cols)
      return WholeRow(tile_.row_begin, rows * cols);
    for (std::size_t row = tile_.row_begin; row < tile_.row_end; ++row) WholeRow(row, cols);
  }
  /// Decodes `count` items from the tile's first column of a row on. The first run ends where a
  /// cache line begins, so that the others need no staging.
  void WholeRow(std::size_t row, std::size_t count) {
    const std::byte* codes = Codes(row, tile_.col_begin);
    std::byte* items = Items(row, tile_.col_begin);
    const std::size_t head = args_.nontemporal ? BytesToLine(items) / item_bytes_ : 0;
    for (std::size_t i = 0, some; i < count; i += some) {
      std::byte* to = items + i * item_bytes_;
      some = std::min(i < head ? head : kDecodeRun, count - i);
      if (prefetches_pages_) PrefetchPageStarts(codes + i + kDecodeRun, some);
      Write({codes + i, to}, some, IsInPlace(to),
            [&](const DecodeRuns& runs) { kernels_.uniform(runs, some, column_scales_[0]); });
    }
  }

  /// Decodes rows of blocks, in groups of rows and columns whose scales are read at once.
  void BlockRows() {
    const std::size_t most = kDecodeCols * block_.items;
    for (std::size_t col = tile_.col_begin; col < tile_.col_end; col += most) {
      const std::size_t cols = std::min(most, tile_.col_end - col);
      const std::size_t blocks = block_.CountIn(cols), batch = scales_.LinesOfBatch(blocks);
      for (std::size_t row = tile_.row_begin; row < tile_.row_end; row += batch) {
        const std::size_t rows = std::min(batch, tile_.row_end - row);
        scales_.Read(row, rows, block_.IndexOf(col), blocks, block_scales_);
        for (std::size_t r = 0; r < rows; ++r)
          BlockRow(row + r, col, cols, block_scales_ + r * blocks);
      }
    }
  }
  void BlockRow(std::size_t row, std::size_t col, std::size_t cols, const float* scales) {
    for (std::size_t i = 0; i < cols; i += kDecodeRun) {
      const std::size_t some = std::min(kDecodeRun, cols - i);
      const std::byte* codes = Codes(row, col + i);
      std::byte* to = Items(row, col + i);
      // Decoding 4-bit codes takes longer than reading them (docs/performance.md).
      if (prefetches_pages_ && per_byte_.items == 1) PrefetchPageStarts(codes + kDecodeRun, some);
      Write({codes, to}, some, IsInPlace(to), [&](const DecodeRuns& runs) {
        kernels_.blocks(runs, some, {scales + block_.IndexOf(i), block_.shift});
      });
    }
  }

  /// Decodes blocks of columns whose codes are not transposed, in strips of one block's rows.
  void Columns() {
    for (std::size_t row = tile_.row_begin; row < tile_.row_end; row += block_.items) {
      for (std::size_t col = tile_.col_begin, cols; col < tile_.col_end; col += cols) {
        cols = StripCols(row, col);
        const Rect strip{row, std::min(block_.items, tile_.row_end - row), col, cols};
        const DecodeColumns columns = ReadColumns(strip);
        for (std::size_t r = row; r < row + strip.rows; r += kAhead) {
          DecodeRuns runs{Codes(r, col)};
          runs.rows = std::min(kAhead, row + strip.rows - r);
          runs.code_stride = runs.next_stride = in_.code_stride;
          if (cols < args_.shape.cols) runs.next = Ahead(strip, r, runs.rows);
          WriteRows(runs, r, col, cols,
                    [&](const DecodeRuns& to) { kernels_.columns(to, cols, columns); });
        }
      }
    }
  }
  /// Returns the number of columns of the strip at (row, col): whole rows if they are short,
  /// because the processor prefetches these. Long rows are cut where lines begin, into strips whose
  /// scales fit in the caches.
  std::size_t StripCols(std::size_t row, std::size_t col) const {
    constexpr std::size_t kStrip = 1024, kWholeBytes = 8192;
    static_assert(kStrip + kLineBytes <= kDecodeCols && kWholeBytes <= kDecodeCols * 2);
    const std::size_t left = tile_.col_end - col;
    if (left == args_.shape.cols && left * item_bytes_ <= kWholeBytes) return left;
    const std::size_t head = args_.nontemporal ? BytesToLine(Items(row, col)) : 0;
    return std::min(kStrip + head / item_bytes_, left);
  }
  /// Returns the address of the codes that are decoded kAhead rows after row r of a strip, from the
  /// next line on: in this strip, in the next strip of the same rows, or in the first strip below.
  const std::byte* Ahead(const Rect& strip, std::size_t r, std::size_t rows) const {
    const std::size_t last = args_.shape.rows - rows, below = strip.row + strip.rows;
    const std::size_t right = strip.col + strip.cols;
    const std::byte* codes = r + kAhead < below ? Codes(std::min(r + kAhead, last), strip.col)
                             : right < tile_.col_end
                                 ? Codes(strip.row, right)
                                 : Codes(std::min(below, last), tile_.col_begin);
    return codes + BytesToLine(codes);
  }

  /// Decodes transposed codes: transposes patches in the first-level cache, then decodes their
  /// rows.
  void Patches() {
    alignas(kLineBytes) std::byte patch[kDecodeSide * kDecodeSide];
    NF_DCHECK(per_byte_.items == 1 || block_.Divides(tile_.row_begin));
    ForEachPatch([&](const Rect& rect, const std::byte* staged, const std::byte* next) {
      const std::size_t lines = per_byte_.CountIn(rect.rows);
      decode_.transpose_codes(staged, per_byte_.IndexOf(kTransposedRun), lines, patch);
      if (per_byte_.items == 2) {
        decode_.split_rows(patch, lines);
        scales_.ReadPatch(rect.col, rect.cols, block_.IndexOf(rect.row), block_.CountIn(rect.rows),
                          block_scales_);
      }
      for (std::size_t r = 0, rows; r < rect.rows; r += rows) {
        const std::size_t row = rect.row + r, left = rect.rows - r;
        // A strip ends where its block ends.
        rows = is_whole_ ? left : std::min(block_.RoundDown(row) + block_.items - row, left);
        const Rect strip{row, rows, rect.col, rect.cols};
        const DecodeColumns columns =
            is_whole_ ? DecodeColumns{}
            : per_byte_.items == 2
                ? ColumnsOf(block_scales_ + block_.IndexOf(r) * kDecodeSide, rect.cols)
                : ReadColumns(strip);
        const DecodeRuns runs{.codes = patch + r * kDecodeSide,
                              .next = next == nullptr ? nullptr : next + r * in_.code_stride,
                              .rows = strip.rows,
                              .code_stride = kDecodeSide,
                              .next_stride = in_.code_stride};
        WriteRows(runs, strip.row, strip.col, strip.cols, [&](const DecodeRuns& to) {
          is_whole_ ? kernels_.uniform(to, strip.cols, column_scales_[0])
                    : kernels_.columns(to, strip.cols, columns);
        });
      }
    });
  }

  /// Copies kTransposedRun positions of kDecodeSide lines of transposed codes at a time, because
  /// each line is in another page. Calls decode(patch, its copied codes, codes to prefetch) for
  /// each kDecodeSide positions of a copy. The codes to prefetch belong to the next copy.
  template <class Decode>
  void ForEachPatch(const Decode& decode) {
    alignas(kLineBytes) std::byte staged[kDecodeSide * kTransposedRun];  // not cleared: see staged_
    const auto codes = [&](std::size_t row, std::size_t col) {
      return in_.codes + col * in_.code_stride + per_byte_.IndexOf(row);
    };
    for (std::size_t row = tile_.row_begin; row < tile_.row_end; row += kTransposedRun) {
      const std::size_t rows = std::min(kTransposedRun, tile_.row_end - row);
      for (std::size_t col = tile_.col_begin; col < tile_.col_end; col += kDecodeSide) {
        const std::size_t cols = std::min(kDecodeSide, tile_.col_end - col);
        Place next{row, col + cols};
        if (next.col == tile_.col_end && row + rows < tile_.row_end)
          next = {row + rows, tile_.col_begin};
        if (next.col + cols > args_.shape.cols) next = {row, col};
        decode_.stage_codes(codes(row, col), in_.code_stride, cols, per_byte_.IndexOf(rows), staged,
                            per_byte_.IndexOf(kTransposedRun));
        const std::byte* ahead = codes(next.row, next.col);
        ahead += BytesToLine(ahead);
        for (std::size_t r = 0; r < rows; r += kDecodeSide) {
          // Each part prefetches as many bytes of a line as the patch has columns. With two codes
          // per byte, the first part thus prefetches the bytes of both parts.
          const std::byte* ahead_of_part =
              r > 0 && per_byte_.items == 2 ? nullptr : ahead + per_byte_.IndexOf(r);
          decode(Rect{row + r, std::min(kDecodeSide, rows - r), col, cols},
                 staged + per_byte_.IndexOf(r), ahead_of_part);
        }
      }
    }
  }

  DecodeColumns ReadColumns(const Rect& strip) {
    const std::size_t block = block_.IndexOf(strip.row);
    if (scheme_.layout.scale_type == ScaleType::kE8M0 && kernels_.factors_of_e8m0 != nullptr) {
      std::byte memory[kDecodeCols];
      const std::byte* stored = scales_.Stored(strip.col, strip.cols, block, 1, memory);
      if (kernels_.factors_of_e8m0(stored, strip.cols, factors_)) return {nullptr, factors_, true};
    }
    scales_.Read(strip.col, strip.cols, block, 1, column_scales_);
    return ColumnsOf(column_scales_, strip.cols);
  }
  DecodeColumns ColumnsOf(const float* scales, std::size_t cols) {
    const bool has_factors =
        kernels_.factors != nullptr && kernels_.factors(scales, cols, factors_);
    return {scales, factors_, has_factors};
  }

  const std::byte* Codes(std::size_t row, std::size_t col) const {
    return in_.codes + row * in_.code_stride + per_byte_.IndexOf(col);
  }
  std::byte* Items(std::size_t row, std::size_t col) const {
    return args_.out.Row(row) + col * item_bytes_;
  }
  /// Returns true if items can be written at `to` without staging. WriteRows has a stricter test.
  bool IsInPlace(const std::byte* to) const {
    return !args_.nontemporal || IsNontemporalAligned(to);
  }

  /// Calls decode(run) for a run of one row: in place, or staged in the first-level cache, from
  /// where whole lines are copied with non-temporal stores. Requires: if in_place,
  /// IsInPlace(run.items); else count <= kDecodeRun.
  template <class Decode>
  void Write(DecodeRuns run, std::size_t count, bool in_place, const Decode& decode) {
    run.nontemporal = args_.nontemporal && in_place;
    if (in_place) return decode(run);
    std::byte* to = run.items;
    run.items = staged_;
    decode(run);
    micro_.copy_nontemporal(staged_, count * item_bytes_, to);
  }
  /// Calls decode(runs) for runs of rows of the output from (row, col) on: once for all rows if
  /// they are evenly spaced and written in place. With non-temporal stores, runs in place fill
  /// cache lines, or each begins where the run before it ends: no other stores may come between two
  /// parts of a line.
  template <class Decode>
  void WriteRows(DecodeRuns runs, std::size_t row, std::size_t col, std::size_t cols,
                 const Decode& decode) {
    runs.items = Items(row, col);
    runs.item_stride = args_.out.row_stride;
    const std::size_t bytes = cols * item_bytes_;
    const bool is_even = args_.out.row_offsets == nullptr, follows = args_.out.IsContiguous(bytes);
    const auto in_place = [&](const std::byte* at, std::size_t stride) {
      const auto place = reinterpret_cast<std::uintptr_t>(at) | stride;
      return !args_.nontemporal ||
             (follows ? place % kNontemporalAlignment : (place | bytes) % kLineBytes) == 0;
    };
    if (is_even && in_place(runs.items, static_cast<std::size_t>(runs.item_stride))) {
      runs.nontemporal = args_.nontemporal;
      return decode(runs);
    }
    for (std::size_t r = 0; r < runs.rows; ++r) {
      std::byte* to = Items(row + r, col);
      const std::byte* next = runs.next == nullptr ? nullptr : runs.next + r * runs.next_stride;
      Write({runs.codes + r * runs.code_stride, to, false, next}, cols, in_place(to, 0), decode);
    }
  }

  static constexpr std::size_t kAhead = 8;  // distance, in rows, of prefetched rows

  const DequantizeArgs& args_;
  const TargetParts& parts_;
  const DirectionBuffers<const std::byte>& in_ = args_.in;
  const Tile& tile_ = args_.tile;
  const MicroKernels& micro_ = *parts_.micro;
  const DecodeKernels& decode_ = *parts_.decode;
  const bool prefetches_pages_ = HasLongVectors(micro_);  // of rows of 8-bit codes
  const FormatDecoders& kernels_ =
      Of(decode_.formats[kSchemeDrivers[args_.scheme].format], args_.dtype);
  const std::size_t item_bytes_ = ItemSize(args_.dtype);
  const SchemeInfo& scheme_ = kSchemes[args_.scheme];
  const bool is_whole_ = scheme_.block == kWholeTensor;
  const Length per_byte_{CodesPerByte(scheme_.element_bits)};
  const Length block_{is_whole_ ? 1 : scheme_.block.cols};  // items of a block along its line
  ScaleReader scales_{args_, decode_};
  // Memory is not cleared: kernels read bytes after the codes or scales of a call, but no result
  // depends on them.
  alignas(kLineBytes) float block_scales_[kDecodePlaces];
  alignas(kLineBytes) float column_scales_[kDecodePlaces];
  alignas(kLineBytes) std::uint16_t factors_[2 * kDecodePlaces];
  alignas(kLineBytes) std::byte staged_[kDecodeRun * sizeof(float)];
};

}  // namespace

void DriveDecoding(const DequantizeArgs& args, const TargetParts& parts) noexcept {
  DecodeDriver(args, parts).Run();
}

}  // namespace narrowfloat::cpu
