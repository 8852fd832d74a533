// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "narrowfloat/kernels/cpu/drivers.h"

namespace narrowfloat::cpu {
namespace {

/// Most rows of a strip: the rows of one block, or one block of each column.
constexpr std::size_t kMostRows = 128;
/// Bytes of the longest vector of codes.
constexpr std::size_t kMostVector = 64;

/// A strip's rows: their items, and how they are encoded.
struct StripRows {
  const std::byte* items[kMostRows];
  MicroRuns runs;
  bool is_even;       // the rows are evenly spaced, as `runs` says
  Place first, next;  // of the items, and of those that are prefetched, otherwise
};

/// Memory of scales, for `kPlaces` blocks or columns.
template <std::size_t kPlaces>
struct ScaleMemory {
  alignas(64) std::byte scale_inv[kPlaces * sizeof(float)];
  alignas(64) float scale[kPlaces];
  alignas(64) std::uint32_t floor[kPlaces];
  alignas(64) float multiplier[kPlaces];

  MicroScales From(std::size_t i) { return {scale_inv + i, scale + i, floor + i, multiplier + i}; }
};

/// Patterns of amaxes, of any type.
template <std::size_t kPlaces>
struct alignas(64) AmaxMemory {
  std::byte pattern[kPlaces * sizeof(float)];
};

/// Copies in pieces of constant size: a call of std::memcpy for so few bytes takes longer.
void CopyScales(const std::byte* from, std::size_t bytes, std::byte* to) {
  for (; bytes >= 16; bytes -= 16, from += 16, to += 16) std::memcpy(to, from, 16);
  for (; bytes >= 4; bytes -= 4, from += 4, to += 4) std::memcpy(to, from, 4);
  for (; bytes > 0; --bytes) *to++ = *from++;
}

void CopyScale(const std::byte* from, std::size_t bytes, std::byte* to) {
  if (bytes == 4) {
    std::memcpy(to, from, 4);
  } else {
    *to = *from;
  }
}

/// Stores scales of `lines` lines (or of `blocks` blocks of one line) from (line, block) on.
void StoreScales(const DirectionBuffers<std::byte>& out, std::size_t scale_bytes, std::size_t line,
                 std::size_t lines, std::size_t block, std::size_t blocks,
                 const std::byte* scales) {
  const ScaleStrides& strides = out.strides;
  if (lines == 1 ? strides.BlocksAreAdjacent() : strides.LinesAreAdjacent()) {
    const std::size_t item = strides.LineOffset(line) + strides.BlockOffset(block);
    return CopyScales(scales, lines * blocks * scale_bytes, out.scale_inv + item * scale_bytes);
  }
  for (std::size_t i = 0; i < lines * blocks; ++i, scales += scale_bytes) {
    const std::size_t item = strides.LineOffset(lines == 1 ? line : line + i) +
                             strides.BlockOffset(lines == 1 ? block + i : block);
    CopyScale(scales, scale_bytes, out.scale_inv + item * scale_bytes);
  }
}

/// Returns how many of `left` columns the next strip takes, if its first codes, `head` of them, lie
/// before a cache line. A strip that is not the last one ends at a line; the last two are about
/// equally wide, since a strip prefetches as many columns as it has.
std::size_t StripCols(std::size_t head, std::size_t left) {
  static_assert(kMicroCols % kLineBytes == 0);
  if (left <= kMicroCols) return left;
  const bool are_two = left < 2 * kMicroCols;
  const std::size_t whole = are_two ? RoundUp(CeilDiv(left, 2), kLineBytes) : kMicroCols;
  return head > 0 ? whole - kLineBytes + head : whole;
}

/// Stores the scales of rows. Where those of one block of successive rows are adjacent, gathers the
/// scales of several rows and stores whole lines: row by row, the lines of a row's blocks are often
/// a power of two apart, so that they evict each other from one set of the first-level cache.
class RowScales {
 public:
  RowScales(const QuantizeArgs& args, const MicroKernels& micro, const BlockGeometry& geometry,
            const Tile& tile)
      : out_(args.rowwise),
        micro_(micro),
        nontemporal_(args.nontemporal),
        scale_bytes_(geometry.scale_bytes),
        block_(geometry.block.cols),
        first_(block_.IndexOf(tile.col_begin)),
        blocks_(block_.CountIn(tile.col_end) - first_),
        gathers_(out_.strides.LinesAreAdjacent() && !out_.strides.BlocksAreAdjacent() &&
                 blocks_ <= kBlocks) {}

  /// Takes the scales of `cols` columns of a row. Requires: rows in ascending order.
  void Store(std::size_t row, std::size_t col, std::size_t cols, const std::byte* scales) {
    const std::size_t block = block_.IndexOf(col), blocks = block_.CountIn(cols);
    if (!gathers_) return StoreScales(out_, scale_bytes_, row, 1, block, blocks, scales);
    std::byte* to = gathered_[block - first_] + rows_ * scale_bytes_;
    for (std::size_t j = 0; j < blocks; ++j, scales += scale_bytes_, to += kLineBytes)
      CopyScale(scales, scale_bytes_, to);
  }
  /// Ends a row: writes what is gathered if it fills lines, or after the last row.
  void EndRow(std::size_t row, bool is_last) {
    if (!gathers_ || ((++rows_) * scale_bytes_ < kLineBytes && !is_last)) return;
    for (std::size_t j = 0; j < blocks_; ++j) Write(row + 1 - rows_, first_ + j, gathered_[j]);
    rows_ = 0;
  }

 private:
  static constexpr std::size_t kBlocks = 64;

  /// Writes the gathered scales of a block with non-temporal stores, if the codes are written so.
  /// An ordinary store reads its line first, and later stores are delayed until it has done so.
  void Write(std::size_t row, std::size_t block, const std::byte* scales) const {
    const std::size_t at = out_.strides.LineOffset(row) + out_.strides.BlockOffset(block);
    const std::size_t bytes = rows_ * scale_bytes_;
    std::byte* to = out_.scale_inv + at * scale_bytes_;
    nontemporal_ ? micro_.copy_nontemporal(scales, bytes, to) : CopyScales(scales, bytes, to);
  }

  const DirectionBuffers<std::byte>& out_;
  const MicroKernels& micro_;
  bool nontemporal_;
  std::size_t scale_bytes_;
  Length block_;
  std::size_t first_, blocks_, rows_ = 0;
  bool gathers_;
  alignas(64) std::byte gathered_[kBlocks][kLineBytes];  // by block
};

class BlockDriver {
 public:
  BlockDriver(const QuantizeArgs& args, const MicroKernels& micro, const FormatKernels& kernels,
              const BlockGeometry& geometry, const ScaleRule& options)
      : args_(args),
        micro_(micro),
        kernels_(kernels),
        geometry_(geometry),
        scales_(kernels.scales[static_cast<std::size_t>(geometry.scale_type)]),
        options_(options),
        block_(geometry.block.cols),
        vector_(micro.vector_bytes),
        amax_(*kernels.amax),
        amax_of_blocks_(amax_.of_blocks[IndexOf(kAmaxLengths, block_.items)]),
        encode_blocks_(kernels.encode_blocks[IndexOf(kBlockLengths, block_.items)]) {}

  void Run(Direction direction) {
    const bool transposes = geometry_.transposed && direction != Direction::kRowwise;
    if (transposes) return Patches(args_.tile, direction);
    if (geometry_.IsSquare()) return Squares(args_.tile, direction);
    if (direction == Direction::kRowwise) return Rows(args_.tile);
    if (direction == Direction::kColumnwise) return Columns(args_.tile);
    Both(args_.tile);
  }

 private:
  /// Quantizes blocks of one row, in batches: amaxes, scales and codes of kMicroRun items, so that
  /// the latency from the last load to the first code is paid once for many items.
  void Rows(const Tile& tile) {
    constexpr std::size_t kCols = kMicroRun;
    // The distance at which rows of 1x128 blocks were fastest: with 4 KiB bfloat16 took a fifth
    // longer, with 16 KiB fp32 did.
    constexpr std::size_t kBytesAhead = 8192;
    const std::size_t ahead =
        std::min(kBytesAhead / amax_.item_bytes, tile.col_end - tile.col_begin);
    RowScales scales(args_, micro_, geometry_, tile);
    for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
      for (std::size_t col = tile.col_begin, cols; col < tile.col_end; col += cols) {
        cols = std::min(kCols, tile.col_end - col);
        std::byte* codes = args_.rowwise.codes + row * args_.rowwise.code_stride + col;
        const std::size_t whole = block_.RoundDown(cols);
        ScaleMemory<kMicroBlocks> memory;
        if (whole > 0) {
          cols = whole;
          Batch({Item(row, col), ItemsAt(Next(row, col + ahead, 1)), codes, args_.nontemporal,
                 nullptr},
                cols, memory.From(0));
        } else {
          ShortBlock(Item(row, col), cols, memory.From(0), codes);
        }
        scales.Store(row, col, cols, memory.scale_inv);
      }
      scales.EndRow(row, row + 1 == tile.row_end);
    }
  }

  /// Quantizes blocks of one column whose codes keep their order, in strips of one block's rows:
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
        if (head > 0) Head(std::min(head, cols), strip, rows);
        ColumnStrip(strip, rows);
      }
    }
  }

  /// Quantizes both directions of blocks of one row, a strip at a time, so that memory is read
  /// once.
  void Both(const Tile& tile) {
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += block_.items) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kMicroCols) {
        const Tile strip{row, std::min(row + block_.items, tile.row_end), col,
                         std::min(col + kMicroCols, tile.col_end)};
        if (StripOfBoth({row, strip.row_end - row, col, strip.col_end - strip.col_begin})) continue;
        Rows(strip);
        Columns(strip);
      }
    }
  }

  /// Quantizes square blocks whose codes keep their order.
  void Squares(const Tile& tile, Direction direction) {
    const bool by_columns = direction == Direction::kColumnwise;
    const DirectionBuffers<std::byte>& out = by_columns ? args_.columnwise : args_.rowwise;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += block_.items) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kMicroCols) {
        const Rect strip{row, std::min(block_.items, tile.row_end - row), col,
                         std::min(kMicroCols, tile.col_end - col)};
        StripRows rows;
        SetRows(strip, out, rows);
        const DirectionBuffers<std::byte>& copy = args_.columnwise;
        if (direction == Direction::kBoth)
          SetCopies(copy.codes + row * copy.code_stride + col, copy.code_stride, rows);
        SquareStrip(strip, rows, direction);
      }
    }
  }

  /// Quantizes blocks whose columnwise codes lie transposed: encodes patches in the first-level
  /// cache, one below the other, and writes their transposes.
  void Patches(const Tile& tile, Direction direction) {
    alignas(64) std::byte codes[(kTransposedRun + kLineBytes) * kTransposedCols];
    for (std::size_t col = tile.col_begin; col < tile.col_end; col += kTransposedCols) {
      std::size_t held = 0;  // rows that are encoded, but not written
      for (std::size_t row = tile.row_begin; row < tile.row_end; row += kTransposedRun) {
        const Rect patch{row, std::min(kTransposedRun, tile.row_end - row), col,
                         std::min(kTransposedCols, tile.col_end - col)};
        for (std::size_t r = 0; r < patch.rows; r += block_.items) {
          const Rect strip{row + r, std::min(block_.items, patch.rows - r), col, patch.cols};
          StripRows rows;
          SetRowsOfPatch(strip, codes + (held + r) * kTransposedCols, direction, rows);
          geometry_.IsSquare() ? SquareStrip(strip, rows, direction) : ColumnStrip(strip, rows);
        }
        const bool is_last = row + patch.rows == tile.row_end;
        held = WriteTransposed({row - held, held + patch.rows, col, patch.cols}, is_last, codes);
      }
    }
  }
  /// Writes the transpose of a patch of codes: all rows if the tile has none below, else the rows
  /// before the last line boundary. A part of a line is written with ordinary stores, which read
  /// the line from memory first; therefore each line is written once. Moves the other rows to the
  /// patch's beginning and returns their number.
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
    return args_.in.Row(row) + col * amax_.item_bytes;
  }
  Place Next(std::size_t row, std::size_t col, std::size_t rows) const {
    return NextPlace(args_, row, col, rows);
  }
  const std::byte* ItemsAt(const Place& place) const {
    return cpu::ItemsAt(args_, place, amax_.item_bytes);
  }
  /// Sets the rows of a strip, whose codes go to `codes`, `stride` apart.
  void SetRows(const Rect& strip, const Place& next, std::byte* codes, std::size_t stride,
               bool nontemporal, StripRows& rows) const {
    rows.first = {strip.row, strip.col};
    rows.next = next;
    rows.runs = {{nullptr, nullptr, codes, nontemporal}, strip.rows, 0, stride};
    rows.is_even = SetItems(args_, rows.first, next, amax_.item_bytes, rows.runs);
    for (std::size_t r = 0; r < strip.rows; ++r) rows.items[r] = Item(strip.row + r, strip.col);
  }
  /// Runs shorter than a cache line do not bypass the caches: each row would wait for memory.
  void SetRows(const Rect& strip, const DirectionBuffers<std::byte>& out, StripRows& rows) const {
    SetRows(strip, Next(strip.row, strip.col + strip.cols, block_.items),
            out.codes + strip.row * out.code_stride + strip.col, out.code_stride,
            args_.nontemporal && strip.cols >= kLineBytes, rows);
  }
  static void SetCopies(std::byte* copies, std::size_t stride, StripRows& rows) {
    rows.runs.first.copy = copies;
    rows.runs.copy_stride = stride;
  }
  MicroRun RunOf(const StripRows& rows, std::size_t r) const {
    MicroRun run = cpu::RunOf(args_, rows.first, rows.next, amax_.item_bytes, rows.runs, r);
    run.items = rows.items[r];
    return run;
  }
  /// Codes go to the patch. Under both directions, those of rows go to memory and are copied to the
  /// patch.
  void SetRowsOfPatch(const Rect& strip, std::byte* codes, Direction direction,
                      StripRows& rows) const {
    const Place next = NextOfPatch(strip);
    if (direction == Direction::kColumnwise)
      return SetRows(strip, next, codes, kTransposedCols, false, rows);
    const DirectionBuffers<std::byte>& out = args_.rowwise;
    SetRows(strip, next, out.codes + strip.row * out.code_stride + strip.col, out.code_stride,
            args_.nontemporal, rows);
    SetCopies(codes, kTransposedCols, rows);
    // Parts of lines at the ends of short runs are not worth staging.
    rows.runs.first.nontemporal &= AreAligned(rows.runs, kLineBytes);
  }
  /// Returns the place of the strip after `strip`: below it or, in the tile's last rows, at the top
  /// of the columns to the right.
  Place NextOfPatch(const Rect& strip) const {
    const std::size_t below = strip.row + block_.items;
    if (below < args_.tile.row_end) return {below, strip.col};
    return Next(args_.tile.row_begin, strip.col + strip.cols,
                args_.tile.row_end - args_.tile.row_begin);
  }

  static EncodeFn Choose(const EncodeKernels& encode, bool finite, bool powers_of_two) {
    if (!finite) return encode.all;
    return powers_of_two ? encode.powers_of_two : encode.finite;
  }
  /// Calls encode(run) for a run of `bytes` codes: without staging if these are cached or can be
  /// streamed, else in the first-level cache, from where whole lines are copied.
  template <class Encode>
  void Write(const MicroRun& run, std::size_t bytes, const Encode& encode) {
    if (!run.nontemporal || CanStreamTo(run.codes)) return encode(run);
    encode({run.items, run.next, staged_, false, run.copy});
    micro_.copy_nontemporal(staged_, bytes, run.codes);
  }
  /// Encodes the rows of a strip. Rows leave directly and their copies staged: lines of two runs
  /// that both bypass the caches at once take twice the time.
  void Write(const StripRows& rows, EncodeFn encode, std::size_t count, std::size_t bytes,
             const MicroScales& scales, bool copies_nontemporal) {
    const bool in_place = !rows.runs.first.nontemporal || AreAligned(rows.runs, kStreamBytes);
    if (in_place && !copies_nontemporal && rows.is_even) return encode(rows.runs, count, scales);
    for (std::size_t r = 0; r < rows.runs.rows; ++r) {
      MicroRun run = RunOf(rows, r);
      std::byte* copy = run.copy;
      if (copies_nontemporal) run.copy = copied_;
      Write(run, bytes, [&](const MicroRun& to) { encode({to}, count, scales); });
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
    Write(run, cols, [&](const MicroRun& to) { encode({to}, blocks, scales); });
  }

  /// Quantizes the last block of a row, padded with zeros.
  void ShortBlock(const std::byte* from, std::size_t cols, const MicroScales& scales,
                  std::byte* out) {
    alignas(64) std::byte items[kTransposedCols * sizeof(float)] = {};
    alignas(64) std::byte codes[kTransposedCols];
    std::memcpy(items, from, cols * amax_.item_bytes);
    Batch({items, items, codes, false, nullptr}, block_.items, scales);
    std::memcpy(out, codes, cols);
  }

  /// Quantizes a strip of blocks of one column: whole vectors of columns, then the others.
  void ColumnStrip(const Rect& strip, const StripRows& rows) {
    const std::size_t whole = vector_.RoundDown(strip.cols);
    if (whole > 0) {
      ScaleMemory<kMicroCols> memory;
      EncodeByColumns(rows, whole, memory.From(0));
      StoreColumnScales(strip, 0, whole, memory.scale_inv);
    }
    if (whole < strip.cols) PaddedColumns(strip, rows, whole, strip.cols);
  }
  /// Quantizes the first `cols` columns of a strip, whose rows have no copies, and moves its
  /// beginning behind them.
  void Head(std::size_t cols, Rect& strip, StripRows& rows) {
    PaddedColumns(strip, rows, 0, cols);
    const std::size_t bytes = cols * amax_.item_bytes;
    strip.col += cols;
    strip.cols -= cols;
    for (std::size_t r = 0; r < strip.rows; ++r) rows.items[r] += bytes;
    rows.first.col += cols;
    rows.next.col += cols;
    rows.runs.first.items += bytes;
    rows.runs.first.next += bytes;
    rows.runs.first.codes += cols;
  }
  /// Quantizes the columns of a strip from `first` to `end`, fewer than fill vectors.
  void PaddedColumns(const Rect& strip, const StripRows& rows, std::size_t first, std::size_t end) {
    ScaleMemory<kMicroCols> memory;
    const std::size_t cols = vector_.RoundUp(end - first);
    Padded(rows, first, end, cols,
           [&](StripRows& padded) { EncodeByColumns(padded, cols, memory.From(0)); });
    StoreColumnScales(strip, first, end - first, memory.scale_inv);
  }
  void StoreColumnScales(const Rect& strip, std::size_t first, std::size_t cols,
                         const std::byte* scales) const {
    StoreScales(args_.columnwise, geometry_.scale_bytes, strip.col + first, cols,
                block_.IndexOf(strip.row), 1, scales);
  }
  void EncodeByColumns(const StripRows& rows, std::size_t cols, const MicroScales& scales) {
    AmaxMemory<kMicroCols> amaxes;
    const bool finite = ColumnAmaxes(rows, cols, amaxes.pattern);
    const bool simple = scales_.of_columns(amaxes.pattern, cols, options_, scales);
    Write(rows, Choose(kernels_.encode_columns, finite, simple), cols, cols, scales, false);
  }
  bool ColumnAmaxes(const StripRows& rows, std::size_t cols, std::byte* amaxes) const {
    ColumnRows of{rows.items, rows.runs.rows};
    if (rows.is_even) {
      of.next = rows.runs.first.next;
      of.stride = rows.runs.item_stride;
    }
    return ComputeColumnAmaxes(amax_, of, cols, amaxes);
  }

  /// Quantizes a strip of square blocks: as many as fill vectors, then the others.
  void SquareStrip(const Rect& strip, StripRows& rows, Direction direction) {
    const std::size_t step = std::max(vector_.items, block_.items);
    const std::size_t whole = strip.cols / step * step;
    const bool copies_nontemporal =
        direction == Direction::kBoth && !geometry_.transposed && args_.nontemporal;
    ScaleMemory<kMicroBlocks> memory;
    if (whole > 0) {
      EncodeSquares(rows, whole, memory.From(0), copies_nontemporal);
      StoreSquareScales({strip.row, strip.rows, strip.col, whole}, memory.scale_inv, direction);
    }
    if (whole == strip.cols) return;
    Padded(rows, whole, strip.cols, step,
           [&](StripRows& padded) { EncodeSquares(padded, step, memory.From(0), false); });
    StoreSquareScales({strip.row, strip.rows, strip.col + whole, strip.cols - whole},
                      memory.scale_inv, direction);
  }
  /// Takes the amaxes of columns first, then those of one row of these.
  void EncodeSquares(const StripRows& rows, std::size_t cols, const MicroScales& scales,
                     bool copies_nontemporal) {
    const std::size_t blocks = block_.IndexOf(cols);
    AmaxMemory<kMicroCols> of_columns;
    AmaxMemory<kMicroBlocks> amaxes;
    const bool finite = ColumnAmaxes(rows, cols, of_columns.pattern);
    amax_of_blocks_(of_columns.pattern, blocks, amaxes.pattern);
    const bool simple = scales_.of_blocks(amaxes.pattern, blocks, options_, scales);
    Write(rows, Choose(encode_blocks_, finite, simple), blocks, cols, scales, copies_nontemporal);
  }
  /// Stores the scales of a strip of square blocks: one for each block, or for each line of it.
  /// Requires: scales for each line have a byte, and their blocks are MX blocks.
  void StoreSquareScales(const Rect& strip, const std::byte* scales, Direction direction) const {
    const std::size_t bytes = geometry_.scale_bytes, per_scale = geometry_.lines_per_scale;
    const std::size_t blocks = block_.CountIn(strip.cols), first = block_.IndexOf(strip.col);
    if (direction != Direction::kColumnwise) {
      for (std::size_t r = 0; r < strip.rows; r += per_scale)
        StoreScales(args_.rowwise, bytes, (strip.row + r) / per_scale, 1, first, blocks, scales);
    }
    if (direction == Direction::kRowwise) return;
    const std::size_t row = block_.IndexOf(strip.row), lines = CeilDiv(strip.cols, per_scale);
    if (per_scale == block_.items)
      return StoreScales(args_.columnwise, bytes, first, blocks, row, 1, scales);
    std::byte repeated[kMicroCols];
    for (std::size_t j = 0; j < blocks; ++j)
      std::memset(repeated + j * kMxBlock, std::to_integer<int>(scales[j]), kMxBlock);
    StoreScales(args_.columnwise, 1, strip.col, lines, row, 1, repeated);
  }

  /// Calls encode(rows) with the columns from `first` to `end` of a strip's rows, padded with zeros
  /// to `cols` columns.
  template <class Encode>
  void Padded(const StripRows& rows, std::size_t first, std::size_t end, std::size_t cols,
              const Encode& encode) const {
    constexpr std::size_t kMost = std::max(kMostVector, kTransposedCols);
    alignas(64) std::byte items[kMostRows][kMost * sizeof(float)];
    alignas(64) std::byte codes[kMostRows][kMost];
    const std::size_t bytes = (end - first) * amax_.item_bytes;
    StripRows padded;
    padded.runs = {
        {items[0], items[0], codes[0], false}, rows.runs.rows, sizeof items[0], sizeof codes[0]};
    padded.is_even = true;
    for (std::size_t r = 0; r < rows.runs.rows; ++r) {
      std::memcpy(items[r], rows.items[r] + first * amax_.item_bytes, bytes);
      std::memset(items[r] + bytes, 0, cols * amax_.item_bytes - bytes);
      padded.items[r] = items[r];
    }
    encode(padded);
    const MicroRuns& out = rows.runs;
    for (std::size_t r = 0; r < out.rows; ++r) {
      std::memcpy(out.first.codes + r * out.code_stride + first, codes[r], end - first);
      if (out.first.copy == nullptr) continue;
      std::memcpy(out.first.copy + r * out.copy_stride + first, codes[r], end - first);
    }
  }

  /// Quantizes a strip of whole blocks of one row in both directions. Returns false, before writing
  /// anything, if a block is short, an item is not finite or a scale is not of the simple ones.
  bool StripOfBoth(const Rect& strip) {
    if (strip.cols % std::max(vector_.items, kMxBlock) != 0) return false;
    StripRows rows;
    SetRows(strip, args_.rowwise, rows);
    ScaleMemory<kRowBlocks * kMxBlock> row_memory;
    ScaleMemory<kMicroCols> column_memory;
    const MicroScales of_columns = column_memory.From(0);
    if (!ComputeScalesOfBoth(rows, strip.cols, row_memory, of_columns)) return false;
    for (std::size_t r = 0; r < strip.rows; ++r) {
      const std::size_t row = strip.row + r;
      const MicroScales of_row = row_memory.From(r * kRowBlocks);
      std::byte* column_codes =
          args_.columnwise.codes + row * args_.columnwise.code_stride + strip.col;
      MicroRun run = RunOf(rows, r);
      run.copy = args_.nontemporal ? copied_ : column_codes;
      Write(run, strip.cols,
            [&](const MicroRun& to) { kernels_.encode_both(to, strip.cols, of_row, of_columns); });
      if (args_.nontemporal) micro_.copy_nontemporal(copied_, strip.cols, column_codes);
      StoreScales(args_.rowwise, geometry_.scale_bytes, row, 1, block_.IndexOf(strip.col),
                  block_.IndexOf(strip.cols), of_row.scale_inv);
    }
    StoreScales(args_.columnwise, geometry_.scale_bytes, strip.col, strip.cols,
                block_.IndexOf(strip.row), 1, of_columns.scale_inv);
    return true;
  }

  /// Computes the scales of rows and columns, as many rows at a time as the first-level cache
  /// holds.
  template <class RowMemory>
  bool ComputeScalesOfBoth(const StripRows& rows, std::size_t cols, RowMemory& row_memory,
                           const MicroScales& of_columns) {
    const std::size_t blocks = cols / kMxBlock;
    AmaxMemory<kMicroCols> of_column;
    for (std::size_t first = 0; first < rows.runs.rows; first += amax_.rows_per_pass) {
      const std::size_t end = std::min(first + amax_.rows_per_pass, rows.runs.rows);
      const AmaxRows which = first == 0 ? AmaxRows::kOfThisCall : AmaxRows::kOfAllCalls;
      if (!amax_.of_columns({rows.items + first, end - first}, cols, which, of_column.pattern))
        return false;
      for (std::size_t r = first; r < end; ++r) {
        AmaxMemory<kMicroBlocks> amaxes;
        amax_of_blocks_(rows.items[r], blocks, amaxes.pattern);
        if (!scales_.of_blocks(amaxes.pattern, blocks, options_, row_memory.From(r * kRowBlocks)))
          return false;
      }
    }
    return scales_.of_columns(of_column.pattern, cols, options_, of_columns);
  }

  static constexpr std::size_t kRowBlocks = kMicroCols / kMxBlock;  // of a strip's row

  const QuantizeArgs& args_;
  const MicroKernels& micro_;
  const FormatKernels& kernels_;
  const BlockGeometry& geometry_;
  const ScaleKernels& scales_;
  const ScaleRule& options_;
  const Length block_, vector_;  // items of a block along its line; codes of a vector
  const AmaxKernels& amax_;
  const BlockAmaxFn amax_of_blocks_;
  const EncodeKernels& encode_blocks_;
  alignas(64) std::byte staged_[kMicroRun];
  alignas(64) std::byte copied_[kMicroCols];
};

}  // namespace

void DriveBlocks(const QuantizeArgs& args, const MicroKernels& micro, const FormatKernels& kernels,
                 const BlockGeometry& geometry, const ScaleRule& options) noexcept {
  BlockDriver(args, micro, kernels, geometry, options).Run(args.direction);
}

}  // namespace narrowfloat::cpu
