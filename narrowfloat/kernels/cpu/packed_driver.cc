// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cpu {
namespace {

constexpr std::size_t kPerByte = CodesPerByte(kBits<E2M1>);
/// Most rows of a strip: those of a square block, or one block of each column.
constexpr std::size_t kMostRows = 128;
/// Most rows of a square block of packed codes, which are staged and drawn for row by row.
constexpr std::size_t kMostLines = kPackUnit;
/// Columns of the widest edge that is staged: less than a vector of codes, or than a block.
constexpr std::size_t kMostEdge = 128;
/// Rows of a patch of transposed codes: its columns hold a run of kPatchBytes bytes each.
constexpr std::size_t kPatchBytes = kTransposedRun / kPerByte;
constexpr std::size_t kPatchRows = kPatchBytes * kPerByte;
/// Most blocks of a patch's column, and the rows of scales that TransposeFn reads.
constexpr std::size_t kPatchBlocks = kPatchRows / kPackUnit, kReadRows = 64;

class PackedDriver {
 public:
  PackedDriver(const QuantizeArgs& args, const MicroKernels& micro, const AmaxKernels& amax,
               const PackKernels& kernels, const PackedGeometry& geometry, Direction direction)
      : args_(args),
        out_(direction == Direction::kRowwise ? args.rowwise : args.columnwise),
        micro_(micro),
        amax_(amax),
        kernels_(kernels),
        geometry_(geometry),
        scale_rule_(kernels.scales[static_cast<std::size_t>(geometry.rule)]),
        block_(geometry.block.cols),
        vector_(micro.vector_bytes),
        amax_of_blocks_(amax.of_blocks[IndexOf(kAmaxLengths, geometry.block.cols)]),
        is_stochastic_(args.rounding == Rounding::kStochastic),
        chooses_(geometry.factors != nullptr && args.options.four_over_six != FourOverSix::kOff),
        errors_{args.options.e4m3_max * kMaxValue<E2M1>,
                args.options.four_over_six == FourOverSix::kMeanSquaredError,
                args.options.four_over_six_fast_error} {
    if (geometry.factors != nullptr)
      factors_.Fill(0, kPackPlaces,
                    geometry.factors(out_.AmaxOf(FirstLine(direction)), args.options));
  }
  ~PackedDriver() {
    if (args_.nontemporal) hwy::FlushStream();
  }
  PackedDriver(const PackedDriver&) = delete;
  PackedDriver& operator=(const PackedDriver&) = delete;

  /// Quantizes blocks along rows, in batches: amaxes, scales and codes of kPackRun items, so that
  /// the latency from the last load to the first code is paid once for many items.
  void Rows() {
    const Tile& tile = args_.tile;
    // Amaxes of columns are computed by whole vectors, and of fewer columns at a time.
    const std::size_t run = IsSquare() ? kMicroCols : kPackRun;
    const std::size_t ahead = std::min(run, tile.col_end - tile.col_begin);
    const Length step = IsSquare() && vector_.items > block_.items ? vector_ : block_;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += geometry_.block.rows) {
      if (out_.line_amaxes != nullptr)
        factors_.Fill(0, kPackPlaces, geometry_.factors(out_.AmaxOf(row), args_.options));
      for (std::size_t col = tile.col_begin, cols; col < tile.col_end; col += cols) {
        const std::size_t left = tile.col_end - col;
        const bool is_edge = left < step.items;
        cols = is_edge ? left : std::min(run, step.RoundDown(left));
        const Rect strip{row, std::min(geometry_.block.rows, tile.row_end - row), col, cols};
        if (is_edge) {
          Edge(strip, step.items);
        } else {
          RowStrip(strip, ahead);
        }
      }
    }
  }

  /// Quantizes blocks along columns: packs the codes of patches in the first-level cache, and
  /// writes their transposes.
  void Patches() {
    const Tile& tile = args_.tile;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += kPatchRows) {
      for (std::size_t col = tile.col_begin; col < tile.col_end; col += kTransposedCols) {
        Patch({row, std::min(kPatchRows, tile.row_end - row), col,
               std::min(kTransposedCols, tile.col_end - col)});
      }
    }
  }

 private:
  /// Scales of blocks or columns.
  struct ScaleMemory {
    alignas(64) std::byte scale_inv[kPackPlaces];
    alignas(64) float scale[kPackPlaces];
    PackScales All() { return {scale_inv, scale}; }
  };
  /// Patterns of the amaxes of columns, or of fewer blocks.
  struct alignas(64) AmaxMemory {
    std::byte pattern[kMicroCols * sizeof(float)];
  };

  std::size_t FirstLine(Direction direction) const {
    return direction == Direction::kRowwise ? args_.tile.row_begin : args_.tile.col_begin;
  }
  bool IsSquare() const { return geometry_.block.rows > 1; }

  template <class Fn>
  Fn Choose(const PackRoundings<Fn>& roundings, bool finite) const {
    if (is_stochastic_) return finite ? roundings.stochastic_finite : roundings.stochastic;
    return finite ? roundings.finite : roundings.all;
  }

  /// Computes the scales of the blocks of a strip of `cols` columns; `scale` for each unit. Returns
  /// true if the items are finite and no product with them rounds to more than the largest code.
  bool RowScales(const std::byte* const* rows, std::size_t count, std::size_t cols,
                 ScaleMemory& scales) const {
    const std::size_t blocks = block_.IndexOf(cols);
    AmaxMemory of_columns, amaxes;
    bool finite = true;
    if (IsSquare()) {
      finite = ComputeColumnAmaxes(amax_, {rows, count}, cols, of_columns.pattern);
      amax_of_blocks_(of_columns.pattern, blocks, amaxes.pattern);
    } else {
      finite = amax_of_blocks_(rows[0], blocks, amaxes.pattern);
    }
    const bool fits = chooses_
                          ? ChooseOfRows(rows, count, blocks, amaxes.pattern, scales)
                          : scale_rule_.of_blocks(amaxes.pattern, blocks, factors_, scales.All());
    SpreadToUnits(blocks, scales.scale);
    return fits && finite;
  }

  /// Gives each unit the scale of its block.
  void SpreadToUnits(std::size_t blocks, float* scale) const {
    const std::size_t units = block_.items / kPackUnit;
    if (units == 1) return;
    float of_blocks[kPackPlaces];
    std::copy_n(scale, blocks, of_blocks);
    if (units == 2) {  // a loop that compilers vectorize
      for (std::size_t j = 0; j < blocks; ++j) scale[2 * j] = scale[2 * j + 1] = of_blocks[j];
    } else {
      for (std::size_t j = 0; j < blocks; ++j) std::fill_n(scale + j * units, units, of_blocks[j]);
    }
  }

  bool ChooseOfRows(const std::byte* const* rows, std::size_t count, std::size_t blocks,
                    const std::byte* amaxes, ScaleMemory& scales) const {
    const FourOverSixKernels& kernels = kernels_.four_over_six;
    ScaleCandidates candidates;
    CandidateErrors errors[kMostLines];
    const bool fits = kernels.candidates(amaxes, blocks, factors_, candidates);
    for (std::size_t r = 0; r < count; ++r)
      kernels.errors_of_row(rows[r], blocks, factors_, errors_, candidates, errors[r]);
    for (std::size_t r = count; r < geometry_.block.rows; ++r) errors[r] = {};
    AddLines(geometry_.block.rows, blocks, errors);
    kernels.choose_of_blocks(candidates, errors[0], blocks, scales.All());
    return fits;
  }
  /// Adds the errors of a block's lines by halves, as the reference does.
  static void AddLines(std::size_t lines, std::size_t blocks, CandidateErrors* errors) {
    for (std::size_t half = lines / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) {
        for (std::size_t k = 0; k < 2; ++k) {
          for (std::size_t j = 0; j < blocks; ++j) errors[i].of[k][j] += errors[i + half].of[k][j];
        }
      }
    }
  }

  /// Quantizes a strip of whole blocks.
  void RowStrip(const Rect& strip, std::size_t ahead) {
    const std::byte* rows[kMostLines];
    for (std::size_t r = 0; r < strip.rows; ++r) rows[r] = Item(strip.row + r, strip.col);
    ScaleMemory scales;
    const bool finite = RowScales(rows, strip.rows, strip.cols, scales);
    const PackRowFn pack = Choose(kernels_.row, finite);
    for (std::size_t r = 0; r < strip.rows; ++r) {
      const Place next = NextPlace(args_, strip.row + r, strip.col + ahead, geometry_.block.rows);
      std::byte* codes = CodesAt(strip.row + r, strip.col);
      const bool is_staged = args_.nontemporal && !CanStreamTo(codes);
      Draw(strip.row + r, strip.col, strip.cols);
      pack({rows[r], ItemsAt(args_, next, amax_.item_bytes), is_staged ? staged_ : codes,
            args_.nontemporal && !is_staged},
           strip.cols / kPackUnit, scales.scale, random_);
      if (is_staged) micro_.copy_nontemporal(staged_, strip.cols / kPerByte, codes);
    }
    StoreRowScales(strip, scales.scale_inv);
  }

  /// Quantizes the last columns of a strip, padded with zeros to `step` of them.
  void Edge(const Rect& strip, std::size_t step) {
    alignas(64) std::byte items[kMostLines][kMostEdge * sizeof(float)];
    const std::byte* rows[kMostLines];
    const std::size_t bytes = strip.cols * amax_.item_bytes;
    for (std::size_t r = 0; r < strip.rows; ++r) {
      std::memcpy(items[r], Item(strip.row + r, strip.col), bytes);
      std::memset(items[r] + bytes, 0, step * amax_.item_bytes - bytes);
      rows[r] = items[r];
    }
    ScaleMemory scales;
    const bool finite = RowScales(rows, strip.rows, step, scales);
    for (std::size_t r = 0; r < strip.rows; ++r) {
      Draw(strip.row + r, strip.col, step);
      Choose(kernels_.row, finite)({rows[r], rows[r], staged_, false}, step / kPackUnit,
                                   scales.scale, random_);
      std::memcpy(CodesAt(strip.row + r, strip.col), staged_, strip.cols / kPerByte);
    }
    StoreRowScales(strip, scales.scale_inv);
  }

  /// Draws the random bytes of `cols` columns of a row, if rounding needs them.
  void Draw(std::size_t row, std::size_t col, std::size_t cols) {
    if (!is_stochastic_) return;
    const std::size_t runs = CeilDiv(args_.shape.cols, kRandomRun);  // of a row
    kernels_.random_of_row(args_.random, row * runs + col / kRandomRun, 1, cols / kRandomRun,
                           random_);
  }

  void StoreRowScales(const Rect& strip, const std::byte* scale_inv) const {
    const std::size_t first = block_.IndexOf(strip.col), blocks = block_.CountIn(strip.cols);
    for (std::size_t r = 0; r < strip.rows; ++r) StoreLine(strip.row + r, first, blocks, scale_inv);
  }
  /// Stores the scales of `blocks` blocks of a line.
  void StoreLine(std::size_t line, std::size_t first, std::size_t blocks,
                 const std::byte* scale_inv) const {
    std::byte* to = out_.scale_inv + out_.strides.LineOffset(line);
    if (out_.strides.BlocksAreAdjacent()) {
      std::memcpy(to + first, scale_inv, blocks);
      return;
    }
    for (std::size_t j = 0; j < blocks; ++j) to[out_.strides.BlockOffset(first + j)] = scale_inv[j];
  }

  void Patch(const Rect& patch) {
    if (out_.line_amaxes != nullptr) {
      for (std::size_t c = 0; c < patch.cols; ++c)
        factors_.Fill(c, c + 1, geometry_.factors(out_.AmaxOf(patch.col + c), args_.options));
    }
    for (std::size_t r = 0; r < patch.rows; r += block_.items) {
      const Rect strip{patch.row + r, std::min(block_.items, patch.rows - r), patch.col,
                       patch.cols};
      ColumnStrip(strip, patch_ + r / kPerByte * kTransposedCols, scales_[block_.IndexOf(r)]);
    }
    StorePatchScales(patch);
    micro_.transpose(patch_, patch.rows / kPerByte, patch.cols, CodesAt(patch.col, patch.row),
                     out_.code_stride, args_.nontemporal);
  }

  /// Quantizes one block of each column of a strip, and pads the columns with zeros to whole
  /// vectors.
  void ColumnStrip(const Rect& strip, std::byte* codes, std::byte* scale_inv) {
    const std::byte *rows[kMostRows], *next[kMostRows];
    const std::size_t cols = vector_.RoundUp(strip.cols);
    const Place after = NextPlace(args_, strip.row, strip.col + kTransposedCols, kPatchRows);
    for (std::size_t r = 0; r < strip.rows; ++r) {
      rows[r] = Item(strip.row + r, strip.col);
      next[r] = PrefetchAt(args_, {after.row + r, after.col}, amax_.item_bytes);
      if (cols == strip.cols) continue;
      const std::size_t bytes = strip.cols * amax_.item_bytes;
      std::memcpy(padded_[r], rows[r], bytes);
      std::memset(padded_[r] + bytes, 0, cols * amax_.item_bytes - bytes);
      rows[r] = padded_[r];
    }
    const PackedStrip in{rows, next, strip.rows, cols};
    alignas(64) float scale[kPackPlaces];
    const bool finite = ColumnScales(in, {scale_inv, scale});
    if (is_stochastic_) {
      const std::size_t runs = CeilDiv(args_.shape.rows, kRandomRun);  // of a column
      kernels_.random_of_columns(args_.random,
                                 kColumnwiseRuns + strip.col * runs + strip.row / kRandomRun, runs,
                                 strip.cols, random_);
    }
    Choose(kernels_.columns, finite)(in, scale, random_, codes);
  }

  /// Computes the scales of a strip's columns. Returns as RowScales does.
  bool ColumnScales(const PackedStrip& strip, const PackScales& scales) const {
    AmaxMemory amaxes;
    const bool finite =
        ComputeColumnAmaxes(amax_, {strip.rows, strip.count}, strip.cols, amaxes.pattern);
    bool fits = true;
    if (chooses_) {
      fits = ChooseOfColumns(strip, amaxes.pattern, scales);
    } else if (IsSquare()) {
      fits = SquareScales(strip.cols, amaxes.pattern, scales);
    } else {
      fits = scale_rule_.of_columns(amaxes.pattern, strip.cols, factors_, scales);
    }
    return fits && finite;
  }

  /// Computes the scales of square blocks from the amaxes of their columns, and stores them for
  /// each column.
  bool SquareScales(std::size_t cols, const std::byte* amaxes, const PackScales& scales) const {
    const std::size_t blocks = cols / kPackUnit;
    AmaxMemory of_blocks;
    ScaleMemory memory;
    amax_of_blocks_(amaxes, blocks, of_blocks.pattern);
    const bool fits = scale_rule_.of_blocks(of_blocks.pattern, blocks, factors_, memory.All());
    kernels_.spread_scales(memory.scale, cols, scales.scale);
    for (std::size_t j = 0; j < blocks; ++j)
      std::memset(scales.scale_inv + j * kPackUnit, std::to_integer<int>(memory.scale_inv[j]),
                  kPackUnit);
    return fits;
  }

  bool ChooseOfColumns(const PackedStrip& strip, std::byte* amaxes,
                       const PackScales& scales) const {
    if (IsSquare()) ShareWithinSquares(strip.cols, amaxes);
    const FourOverSixKernels& kernels = kernels_.four_over_six;
    ScaleCandidates candidates;
    CandidateErrors errors;
    const bool fits = kernels.candidates(amaxes, strip.cols, factors_, candidates);
    kernels.errors_of_columns(strip, factors_, errors_, candidates, errors);
    if (IsSquare()) {
      for (float* of : errors.of) AddColumns(geometry_.block.rows, strip.cols, of);
    }
    kernels.choose_of_columns(candidates, errors, strip.cols, scales);
    return fits;
  }
  /// Gives each column the sum of the errors of its block's columns, added by halves.
  static void AddColumns(std::size_t lines, std::size_t cols, float* errors) {
    for (float* of = errors; of < errors + cols; of += lines) {
      for (std::size_t half = lines / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) of[i] += of[i + half];
      }
      std::fill_n(of, lines, of[0]);
    }
  }

  /// Replaces the amaxes of the columns of a square block by the block's.
  void ShareWithinSquares(std::size_t cols, std::byte* amaxes) const {
    AmaxMemory of_blocks;
    amax_of_blocks_(amaxes, cols / kPackUnit, of_blocks.pattern);
    const std::size_t bytes = kPackUnit * amax_.item_bytes;  // of a block's amaxes
    for (std::size_t j = 0; j < cols / kPackUnit; ++j) {
      std::byte* to = amaxes + j * bytes;
      std::memcpy(to, of_blocks.pattern + j * amax_.item_bytes, amax_.item_bytes);
      for (std::size_t done = amax_.item_bytes; done < bytes; done *= 2)
        std::memcpy(to + done, to, done);
    }
  }

  /// Stores the scales of all blocks of a patch, column by column: columns are often a power of two
  /// of cache lines apart, so that they evict each other from the first-level cache.
  void StorePatchScales(const Rect& patch) const {
    const std::size_t first = block_.IndexOf(patch.row), blocks = block_.CountIn(patch.rows);
    if (out_.strides.BlocksAreAdjacent()) {
      const std::size_t line = out_.strides.LineOffset(patch.col);
      const std::size_t stride = out_.strides.LineOffset(patch.col + 1) - line;
      return micro_.transpose(scales_[0], blocks, patch.cols, out_.scale_inv + line + first, stride,
                              false);
    }
    alignas(64) std::byte turned[kTransposedCols * kPatchBlocks];
    micro_.transpose(scales_[0], blocks, patch.cols, turned, kPatchBlocks, false);
    for (std::size_t c = 0; c < patch.cols; ++c)
      StoreLine(patch.col + c, first, blocks, turned + c * kPatchBlocks);
  }

  const std::byte* Item(std::size_t row, std::size_t col) const {
    return args_.in.Row(row) + col * amax_.item_bytes;
  }
  /// Returns the address of the codes of a line from a position on.
  std::byte* CodesAt(std::size_t line, std::size_t pos) const {
    return out_.codes + line * out_.code_stride + pos / kPerByte;
  }

  const QuantizeArgs& args_;
  const DirectionBuffers<std::byte>& out_;
  const MicroKernels& micro_;
  const AmaxKernels& amax_;
  const PackKernels& kernels_;
  const PackedGeometry& geometry_;
  const PackScaleKernels& scale_rule_;
  const Length block_, vector_;  // items of a block along its line; codes of a vector
  const BlockAmaxFn amax_of_blocks_;
  const bool is_stochastic_, chooses_;
  const ErrorRule errors_;
  TwoLevelFactors factors_;
  alignas(64) std::byte staged_[kPackRun];
  alignas(64) std::uint8_t random_[(kPackPlaces + kPackUnit) * kRandomRun];
  alignas(64) std::byte padded_[kMostRows][kTransposedCols * sizeof(float)];
  alignas(64) std::byte patch_[kPatchBytes * kTransposedCols];
  alignas(64) std::byte scales_[kReadRows][kTransposedCols];  // by block of a column
};

}  // namespace

void DrivePacked(const QuantizeArgs& args, const MicroKernels& micro, const AmaxKernels& amax,
                 const PackKernels& kernels, const PackedGeometry& geometry,
                 Direction direction) noexcept {
  PackedDriver driver(args, micro, amax, kernels, geometry, direction);
  direction == Direction::kRowwise ? driver.Rows() : driver.Patches();
}

}  // namespace narrowfloat::cpu
