// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/kernels/dcheck.h"

namespace narrowfloat::cpu {
namespace {

/// Most rows of a strip: the longest block of a column, or the largest square block.
constexpr std::size_t kMostRows = std::ranges::max(kBlockLengths);

/// A strip's rows: the addresses of their items, and the runs that encode them.
struct StripRows {
  const std::byte* items[kMostRows];
  MicroRuns runs;
  bool is_even;       // the rows are evenly spaced, by the strides of `runs`
  Place first, next;  // of the items, and of the items that are prefetched; for RunOf
};

/// Memory of scales, for `kPlaces` blocks or columns.
template <std::size_t kPlaces>
struct ScaleMemory {
  alignas(64) std::byte scale_inv[kPlaces * sizeof(float)];
  alignas(64) float scale[kPlaces];
  alignas(64) std::uint32_t floor[kPlaces];
  alignas(64) float multiplier[kPlaces];

  /// Returns the scales from place i on. Requires: scale_inv holds bytes, or i is 0.
  MicroScales From(std::size_t i) { return {scale_inv + i, scale + i, floor + i, multiplier + i}; }
};

/// Returns the number of columns of the next strip, of `left` columns. Its first `head` codes are
/// before a line boundary. A strip that is not the last one ends at a line boundary. The last two
/// are about equally wide, because a strip prefetches as many columns as it has.
std::size_t StripCols(std::size_t head, std::size_t left) {
  static_assert(kMicroCols % kLineBytes == 0);
  if (left <= kMicroCols) return left;
  const bool are_two = left < 2 * kMicroCols;
  const std::size_t whole = are_two ? RoundUp(CeilDiv(left, 2), kLineBytes) : kMicroCols;
  return head > 0 ? whole - kLineBytes + head : whole;
}

/// Stores the scales of rows. If a block's scales of successive rows are adjacent, gathers the
/// scales of several rows and stores whole cache lines (docs/performance.md).
class RowScales {
 public:
  RowScales(const QuantizeArgs& args, const MicroKernels& micro, const Length& block,
            const Tile& tile)
      : args_(args), micro_(micro), block_(block), tile_(tile) {}

  /// Stores or gathers the scales of `cols` columns of a row. Requires: rows in ascending order.
  void Store(std::size_t row, std::size_t col, std::size_t cols, const std::byte* scales) {
    const std::size_t block = block_.IndexOf(col), blocks = block_.CountIn(cols);
    if (!gathers_) return StoreScales(out_, scale_bytes_, row, 1, block, blocks, scales);
    std::byte* to = gathered_[block - first_] + rows_ * scale_bytes_;
    for (std::size_t j = 0; j < blocks; ++j, scales += scale_bytes_, to += kLineBytes)
      CopyScale(scales, scale_bytes_, to);
  }
  /// Ends a row: writes the gathered scales if they fill lines, or if the row is the last one.
  void EndRow(std::size_t row, bool is_last) {
    if (!gathers_ || ((++rows_) * scale_bytes_ < kLineBytes && !is_last)) return;
    for (std::size_t j = 0; j < blocks_; ++j) Write(row + 1 - rows_, first_ + j, gathered_[j]);
    rows_ = 0;
  }

 private:
  static constexpr std::size_t kBlocks = 64;

  /// Writes the gathered scales of a block, with non-temporal stores if the codes have such stores.
  void Write(std::size_t row, std::size_t block, const std::byte* scales) const {
    const std::size_t at = out_.strides.LineOffset(row) + out_.strides.BlockOffset(block);
    const std::size_t bytes = rows_ * scale_bytes_;
    std::byte* to = out_.scale_inv + at * scale_bytes_;
    args_.nontemporal ? micro_.copy_nontemporal(scales, bytes, to) : CopyScales(scales, bytes, to);
  }

  const QuantizeArgs& args_;
  const MicroKernels& micro_;
  const Length block_;
  const Tile& tile_;
  const DirectionBuffers<std::byte>& out_ = args_.rowwise;
  const std::size_t scale_bytes_ = ScaleBytes(kSchemes[args_.scheme].layout.scale_type);
  const std::size_t first_ = block_.IndexOf(tile_.col_begin);
  const std::size_t blocks_ = block_.CountIn(tile_.col_end) - first_;
  const bool gathers_ =
      out_.strides.LinesAreAdjacent() && !out_.strides.BlocksAreAdjacent() && blocks_ <= kBlocks;
  std::size_t rows_ = 0;
  alignas(64) std::byte gathered_[kBlocks][kLineBytes];  // by block
};

class BlockDriver {
 public:
  BlockDriver(const QuantizeArgs& args, const TargetParts& parts)
      : args_(args), micro_(*parts.micro) {
    // The amaxes of longer blocks may end within a vector.
    NF_DCHECK(scheme_.layout.scale_type != ScaleType::kE8M0 || block_.items == kMxBlock);
  }

  void Run() {
    const Direction direction = args_.direction;
    if (scheme_.layout.columnwise_transposed && direction != Direction::kRowwise) return Patches();
    if (is_square_) return Squares();
    if (direction == Direction::kRowwise) return Rows(args_.tile);
    if (direction == Direction::kColumnwise) return Columns(args_.tile);
    Both();
  }

 private:
  /// Quantizes blocks of one row, in batches: amaxes, scales and codes of kMicroRun items, so that
  /// the latency from the last load to the first code occurs once for many items.
  void Rows(const Tile& tile) {
    // The fastest distances (docs/performance.md): 8 KiB with vectors of 512 bits, the next batch
    // with shorter ones.
    constexpr std::size_t kBytesAhead = 8192;
    const std::size_t fastest = HasLongVectors(micro_) ? kBytesAhead / item_bytes_ : kMicroRun;
    const std::size_t ahead = std::min(fastest, tile.col_end - tile.col_begin);
    RowScales scales(args_, micro_, block_, tile);
    for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
      for (std::size_t col = tile.col_begin, cols; col < tile.col_end; col += cols) {
        cols = std::min(kMicroRun, tile.col_end - col);
        std::byte* codes = args_.rowwise.codes + row * args_.rowwise.code_stride + col;
        const std::size_t whole = block_.RoundDown(cols);
        ScaleMemory<kMicroBlocks> memory;
        if (whole > 0) {
          cols = whole;
          const Place next = NextPlace(args_, row, col + ahead, 1);
          Batch({Item(row, col), ItemsAt(args_, next, item_bytes_), codes, args_.nontemporal}, cols,
                memory.From(0));
        } else {
          ShortBlock(Item(row, col), cols, memory.From(0), codes);
        }
        scales.Store(row, col, cols, memory.scale_inv);
      }
      scales.EndRow(row, row + 1 == tile.row_end);
    }
  }

  /// Quantizes blocks of one column whose codes are not transposed, in strips of one block's rows:
  /// amaxes of columns, scales, then codes row by row.
  void Columns(const Tile& tile) {
    const DirectionBuffers<std::byte>& out = args_.columnwise;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += block_.items) {
      for (std::size_t col = tile.col_begin, cols; col < tile.col_end; col += cols) {
        const std::byte* codes = out.codes + row * out.code_stride + col;
        const auto stride = static_cast<std::ptrdiff_t>(out.code_stride);
        const std::size_t head = args_.nontemporal ? BytesToLine(codes, stride) : 0;
        cols = StripCols(head, tile.col_end - col);
        Rect strip{row, std::min(block_.items, tile.row_end - row), col, cols};
        StripRows rows;
        SetRows(strip, out, rows);
        if (head > 0) {
          const std::size_t first = std::min(head, cols);
          PaddedColumns(strip, rows, 0, first);
          strip.col += first;
          strip.cols -= first;
          SetRows(strip, out, rows);
        }
        Strip(strip, rows);
      }
    }
  }

  /// Quantizes blocks of one row and of one column, a strip at a time, so that items are read from
  /// memory once.
  void Both() {
    ForEachRect(args_.tile, block_.items, kMicroCols, [&](const Rect& strip) {
      if (StripOfBoth(strip)) return;
      const Tile part{strip.row, strip.row + strip.rows, strip.col, strip.col + strip.cols};
      Rows(part);
      Columns(part);
    });
  }

  /// Quantizes square blocks whose codes are not transposed.
  void Squares() {
    const bool by_columns = args_.direction == Direction::kColumnwise;
    const DirectionBuffers<std::byte>& out = by_columns ? args_.columnwise : args_.rowwise;
    ForEachRect(args_.tile, block_.items, kMicroCols, [&](const Rect& strip) {
      StripRows rows;
      SetRows(strip, out, rows);
      if (args_.direction == Direction::kBoth) {
        rows.runs.copy_stride = args_.columnwise.code_stride;
        rows.runs.first.copy =
            args_.columnwise.codes + strip.row * rows.runs.copy_stride + strip.col;
      }
      Strip(strip, rows);
    });
  }

  /// Quantizes blocks whose columnwise codes are stored transposed: encodes patches in the
  /// first-level cache, one below the other, and writes their transposes.
  void Patches() {
    const Tile& tile = args_.tile;
    alignas(64) std::byte codes[(kTransposedRun + kLineBytes) * kTransposedCols];
    // In a tile of one row of patches, the next patch is to the right, and two patches are
    // prefetched together (NextPiece). In other tiles, the next patch is below.
    const bool is_low = tile.row_end - tile.row_begin <= kTransposedRun;
    for (std::size_t col = tile.col_begin; col < tile.col_end; col += kTransposedCols) {
      std::size_t held = 0;  // rows that are encoded, but not written
      for (std::size_t row = tile.row_begin; row < tile.row_end; row += kTransposedRun) {
        const Rect patch{row, std::min(kTransposedRun, tile.row_end - row), col,
                         std::min(kTransposedCols, tile.col_end - col)};
        for (std::size_t r = 0; r < patch.rows; r += block_.items) {
          const Rect strip{row + r, std::min(block_.items, patch.rows - r), col, patch.cols};
          StripRows rows;
          const Place next = is_low ? NextPiece(args_, patch, r) : NextOfPatch(strip);
          SetRows(strip, next, codes + (held + r) * kTransposedCols, kTransposedCols, false, rows,
                  is_low ? kPatchesAhead : 1);
          if (args_.direction == Direction::kBoth) KeepRows(args_, rows.first, rows.runs);
          Strip(strip, rows);
        }
        const bool is_last = row + patch.rows == tile.row_end;
        held = WriteTransposed({row - held, held + patch.rows, col, patch.cols}, is_last, codes);
      }
    }
  }
  /// Writes the transpose of a patch of codes. With ordinary stores or in the tile's last rows,
  /// writes all rows, else the rows before the last line boundary, so that each line is written
  /// once. Moves the other rows to the beginning of `codes` and returns their number.
  std::size_t WriteTransposed(const Rect& patch, bool is_last, std::byte* codes) const {
    const std::size_t stride = args_.columnwise.code_stride;
    std::byte* out = args_.columnwise.codes + patch.col * stride + patch.row;
    std::size_t held = 0;
    if (args_.nontemporal && !is_last) {
      const std::size_t past = BytesToLine(out + patch.rows, static_cast<std::ptrdiff_t>(stride));
      held = past == 0 ? 0 : kLineBytes - past;
    }
    const std::size_t end = patch.rows - held;
    for (std::size_t r = 0; r < end; r += kTransposedRun) {
      micro_.transpose(codes + r * kTransposedCols, std::min(kTransposedRun, end - r), patch.cols,
                       out + r, stride, args_.nontemporal);
    }
    std::memmove(codes, codes + end * kTransposedCols, held * kTransposedCols);
    return held;
  }

  const std::byte* Item(std::size_t row, std::size_t col) const {
    return args_.in.Row(row) + col * item_bytes_;
  }
  /// Sets the rows of a strip, whose codes are written to `codes`, `stride` apart.
  void SetRows(const Rect& strip, const Place& next, std::byte* codes, std::size_t stride,
               bool nontemporal, StripRows& rows, std::size_t pieces = 1) const {
    rows.first = {strip.row, strip.col};
    rows.next = next;
    rows.runs = {{nullptr, nullptr, codes, nontemporal}, strip.rows, 0, stride};
    rows.runs.pieces = pieces;
    rows.is_even = SetItems(args_, rows.first, next, item_bytes_, rows.runs);
    for (std::size_t r = 0; r < strip.rows; ++r) rows.items[r] = Item(strip.row + r, strip.col);
  }
  /// Sets the rows of a strip, whose codes are written to `out`. Runs shorter than a cache line
  /// have ordinary stores, because non-temporal ones would read memory for each row.
  void SetRows(const Rect& strip, const DirectionBuffers<std::byte>& out, StripRows& rows) const {
    SetRows(strip, NextPlace(args_, strip.row, strip.col + strip.cols, block_.items),
            out.codes + strip.row * out.code_stride + strip.col, out.code_stride,
            args_.nontemporal && strip.cols >= kLineBytes, rows);
  }
  MicroRun RunOf(const StripRows& rows, std::size_t r) const {
    return cpu::RunOf(args_, rows.first, rows.next, item_bytes_, rows.runs, r);
  }
  /// Returns the place of the strip after `strip`: below it or, after the tile's last rows, at the
  /// top of the columns to the right.
  Place NextOfPatch(const Rect& strip) const {
    const std::size_t below = strip.row + block_.items;
    if (below < args_.tile.row_end) return {below, strip.col};
    return NextPlace(args_, args_.tile.row_begin, strip.col + strip.cols,
                     args_.tile.row_end - args_.tile.row_begin);
  }

  static EncodeFn Choose(const EncodeKernels& encode, bool finite, bool powers_of_two) {
    if (!finite) return encode.all;
    return powers_of_two ? encode.powers_of_two : encode.finite;
  }
  /// Encodes the rows of a strip. If rows and copies have non-temporal stores, copies are always
  /// staged: non-temporal stores to the lines of two runs at once take twice the time.
  void Write(const StripRows& rows, EncodeFn encode, std::size_t count, std::size_t bytes,
             const MicroScales& scales) {
    const std::size_t alignment =
        rows.runs.first.copy != nullptr ? kLineBytes : kNontemporalAlignment;
    const bool in_place = !rows.runs.first.nontemporal || AreAligned(rows.runs, alignment);
    const bool copies_nontemporal = rows.runs.first.copy != nullptr &&
                                    !scheme_.layout.columnwise_transposed && args_.nontemporal;
    if (in_place && !copies_nontemporal && rows.is_even) return encode(rows.runs, count, scales);
    for (std::size_t r = 0; r < rows.runs.rows; ++r) {
      MicroRun run = RunOf(rows, r);
      std::byte* copy = run.copy;
      if (copies_nontemporal) run.copy = copied_;
      WriteRun(micro_, run, alignment, bytes, staged_,
               [&](const MicroRun& to) { encode({to}, count, scales); });
      if (copies_nontemporal) micro_.copy_nontemporal(copied_, bytes, copy);
    }
  }

  /// Quantizes `cols` columns of whole blocks of a row.
  void Batch(const MicroRun& run, std::size_t cols, const MicroScales& scales) {
    const std::size_t blocks = block_.IndexOf(cols);
    AmaxMemory<kMicroBlocks> amaxes;
    const bool finite = amax_of_blocks_(run.items, blocks, amaxes.pattern);
    const bool simple = scales_.of_blocks(amaxes.pattern, blocks, options_, scales);
    const EncodeFn encode = Choose(encode_blocks_, finite, simple);
    WriteRun(micro_, run, kNontemporalAlignment, cols, staged_,
             [&](const MicroRun& to) { encode({to}, blocks, scales); });
  }

  /// Quantizes a short last block of a row, padded with zeros.
  void ShortBlock(const std::byte* from, std::size_t cols, const MicroScales& scales,
                  std::byte* out) {
    alignas(64) std::byte items[kTransposedCols * sizeof(float)];
    alignas(64) std::byte codes[kTransposedCols];
    PadItems(from, cols * item_bytes_, block_.items * item_bytes_, items);
    Batch({items, items, codes, false, nullptr}, block_.items, scales);
    std::memcpy(out, codes, cols);
  }

  /// Quantizes a strip of blocks of several rows: first the columns of whole steps, then the rest.
  void Strip(const Rect& strip, const StripRows& rows) {
    const std::size_t whole = step_.RoundDown(strip.cols);
    if (whole > 0) {
      ScaleMemory<kMicroCols> memory;
      Encode(rows, whole, memory.From(0));
      StoreStripScales({strip.row, strip.rows, strip.col, whole}, memory.scale_inv);
    }
    if (whole < strip.cols) PaddedColumns(strip, rows, whole, strip.cols);
  }
  /// Quantizes the columns of a strip from `first` to `end`, padded with zeros to whole steps.
  /// Requires: end - first <= kTransposedCols.
  void PaddedColumns(const Rect& strip, const StripRows& rows, std::size_t first, std::size_t end) {
    alignas(64) std::byte items[kMostRows][kTransposedCols * sizeof(float)];
    alignas(64) std::byte codes[kMostRows][kTransposedCols];
    const std::size_t cols = step_.RoundUp(end - first);
    const MicroRuns& out = rows.runs;
    StripRows padded;
    padded.runs = {
        {items[0], items[0], codes[0], false}, out.rows, sizeof items[0], sizeof codes[0]};
    padded.is_even = true;
    for (std::size_t r = 0; r < out.rows; ++r) {
      padded.items[r] = PadItems(rows.items[r] + first * item_bytes_, (end - first) * item_bytes_,
                                 cols * item_bytes_, items[r]);
    }
    ScaleMemory<kTransposedCols> memory;
    Encode(padded, cols, memory.From(0));
    for (std::size_t r = 0; r < out.rows; ++r) {
      std::memcpy(out.first.codes + r * out.code_stride + first, codes[r], end - first);
      if (out.first.copy == nullptr) continue;
      std::memcpy(out.first.copy + r * out.copy_stride + first, codes[r], end - first);
    }
    StoreStripScales({strip.row, strip.rows, strip.col + first, end - first}, memory.scale_inv);
  }
  /// Computes the amaxes of columns and, for square blocks, the amaxes of a row of blocks from
  /// these; then the scales and codes.
  void Encode(const StripRows& rows, std::size_t cols, const MicroScales& scales) {
    AmaxMemory<kMicroCols> of_columns;
    AmaxMemory<kMicroBlocks> of_blocks;
    const bool finite = ColumnAmaxes(rows, cols, of_columns.pattern);
    if (!is_square_) {
      const bool simple = scales_.of_columns(of_columns.pattern, cols, options_, scales);
      return Write(rows, Choose(kernels_.encode_columns, finite, simple), cols, cols, scales);
    }
    const std::size_t blocks = block_.IndexOf(cols);
    amax_of_blocks_(of_columns.pattern, blocks, of_blocks.pattern);
    const bool simple = scales_.of_blocks(of_blocks.pattern, blocks, options_, scales);
    Write(rows, Choose(encode_blocks_, finite, simple), blocks, cols, scales);
  }
  bool ColumnAmaxes(const StripRows& rows, std::size_t cols, std::byte* amaxes) const {
    ColumnRows of{rows.items, rows.runs.rows};
    // Pieces are not prefetched while amaxes are computed: that took longer (docs/performance.md).
    if (rows.is_even && rows.runs.pieces == 1) {
      of.next = rows.runs.first.next;
      of.stride = rows.runs.item_stride;
    }
    return ComputeColumnAmaxes(amax_, of, cols, amaxes);
  }

  /// Stores the scales of a strip: one per column or, of square blocks, one per lines_per_scale
  /// lines. Requires: scales that are repeated for each line have one byte, and their blocks have
  /// kMxBlock items.
  void StoreStripScales(const Rect& strip, const std::byte* scales) const {
    const std::size_t per_scale = scheme_.layout.lines_per_scale;
    const std::size_t row = block_.IndexOf(strip.row);
    if (!is_square_)
      return StoreScales(args_.columnwise, scale_bytes_, strip.col, strip.cols, row, 1, scales);
    const std::size_t blocks = block_.CountIn(strip.cols), first = block_.IndexOf(strip.col);
    if (args_.direction != Direction::kColumnwise) {
      for (std::size_t r = 0; r < strip.rows; r += per_scale)
        StoreScales(args_.rowwise, scale_bytes_, (strip.row + r) / per_scale, 1, first, blocks,
                    scales);
    }
    if (args_.direction == Direction::kRowwise) return;
    const std::size_t lines = CeilDiv(strip.cols, per_scale);
    if (per_scale == block_.items)
      return StoreScales(args_.columnwise, scale_bytes_, first, blocks, row, 1, scales);
    std::byte repeated[kMicroCols];
    for (std::size_t j = 0; j < blocks; ++j)
      std::memset(repeated + j * kMxBlock, std::to_integer<int>(scales[j]), kMxBlock);
    StoreScales(args_.columnwise, 1, strip.col, lines, row, 1, repeated);
  }

  /// Quantizes a strip of blocks of one row and of one column. Returns false, before it writes, if
  /// the columns do not fill blocks and vectors, an item is not finite, or ScalesFn returns false.
  bool StripOfBoth(const Rect& strip) {
    if (strip.cols % std::max(step_.items, kMxBlock) != 0) return false;
    StripRows rows;
    SetRows(strip, args_.rowwise, rows);
    ScaleMemory<kMicroCols> row_memory, column_memory;
    const MicroScales of_columns = column_memory.From(0);
    if (!ComputeScalesOfBoth(rows, strip.cols, row_memory, of_columns)) return false;
    for (std::size_t r = 0; r < strip.rows; ++r) {
      const std::size_t row = strip.row + r;
      const MicroScales of_row = row_memory.From(r * kMicroBlocks);
      std::byte* column_codes =
          args_.columnwise.codes + row * args_.columnwise.code_stride + strip.col;
      MicroRun run = RunOf(rows, r);
      run.copy = args_.nontemporal ? copied_ : column_codes;
      WriteRun(micro_, run, kNontemporalAlignment, strip.cols, staged_, [&](const MicroRun& to) {
        kernels_.encode_both(to, strip.cols, of_row, of_columns);
      });
      if (args_.nontemporal) micro_.copy_nontemporal(copied_, strip.cols, column_codes);
      StoreScales(args_.rowwise, scale_bytes_, row, 1, block_.IndexOf(strip.col),
                  block_.IndexOf(strip.cols), of_row.scale_inv);
    }
    StoreScales(args_.columnwise, scale_bytes_, strip.col, strip.cols, block_.IndexOf(strip.row), 1,
                of_columns.scale_inv);
    return true;
  }

  /// Computes the scales of rows and columns. Returns false if an item is not finite, or ScalesFn
  /// returns false.
  bool ComputeScalesOfBoth(const StripRows& rows, std::size_t cols,
                           ScaleMemory<kMicroCols>& row_memory, const MicroScales& of_columns) {
    const std::size_t blocks = cols / kMxBlock;
    AmaxMemory<kMicroCols> of_column;
    std::memset(of_column.pattern, 0, cols * item_bytes_);
    for (std::size_t r = 0; r < rows.runs.rows; ++r) {
      AmaxMemory<kMicroBlocks> amaxes;
      if (!amax_.of_row(rows.items[r], blocks, amaxes.pattern, of_column.pattern) ||
          !scales_.of_blocks(amaxes.pattern, blocks, options_, row_memory.From(r * kMicroBlocks)))
        return false;
    }
    return scales_.of_columns(of_column.pattern, cols, options_, of_columns);
  }

  const QuantizeArgs& args_;
  const MicroKernels& micro_;
  const SchemeInfo& scheme_ = kSchemes[args_.scheme];
  const bool is_square_ = scheme_.block.rows > 1;
  const std::size_t scale_bytes_ = ScaleBytes(scheme_.layout.scale_type);
  const Length block_{scheme_.block.cols};  // items of a block along its line
  // Columns of a step, which fill whole vectors and whole square blocks.
  const Length step_{std::max(micro_.vector_bytes, is_square_ ? block_.items : 1)};
  const FormatKernels& kernels_ =
      Of(micro_.formats[kSchemeDrivers[args_.scheme].format], args_.dtype);
  const ScaleKernels& scales_ = Of(kernels_.scales, scheme_.layout.scale_type);
  // The rule is the same for every format. E8M0 scales do not read it.
  const ScaleRule options_ = Fp8BlockRule<E4M3>::Prepare(0.0f, args_.options);
  const std::size_t item_bytes_ = ItemSize(args_.dtype);
  const AmaxKernels& amax_ = Of(micro_.amax, args_.dtype);
  const BlockAmaxFn amax_of_blocks_ = amax_.of_blocks[IndexOf(kAmaxLengths, block_.items)];
  const EncodeKernels& encode_blocks_ =
      kernels_.encode_blocks[IndexOf(kBlockLengths, block_.items)];
  alignas(64) std::byte staged_[kMicroRun];
  alignas(64) std::byte copied_[kMicroCols];
};

}  // namespace

void DriveBlocks(const QuantizeArgs& args, const TargetParts& parts) noexcept {
  BlockDriver(args, parts).Run();
}

}  // namespace narrowfloat::cpu
