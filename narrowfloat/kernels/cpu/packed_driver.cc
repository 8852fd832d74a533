// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "narrowfloat/kernels/cpu/drivers.h"
#include "narrowfloat/kernels/cpu/exact_transform.h"
#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/kernels/geometry.h"

namespace narrowfloat::cpu {
namespace {

constexpr std::size_t kPerByte = CodesPerByte(kBits<E2M1>);
/// Most rows of a strip: the longest block of a column.
constexpr std::size_t kMostRows = std::ranges::max(kAmaxLengths);
/// Most rows of a square block of packed codes. Codes are staged, and random bytes computed, one
/// row at a time.
constexpr std::size_t kMostLines = kPackUnit;
/// Rows of a patch of transposed codes: each of its columns holds a run of kPatchBytes bytes.
constexpr std::size_t kPatchBytes = kTransposedRun / kPerByte;
constexpr std::size_t kPatchRows = kPatchBytes * kPerByte;
/// Most blocks of a patch's column, and the rows of scales that TransposeFn may read.
constexpr std::size_t kPatchBlocks = kPatchRows / kPackUnit, kReadRows = 64;

class PackedDriver {
 public:
  PackedDriver(const QuantizeArgs& args, const TargetParts& parts) : args_(args), parts_(parts) {}

  void Run() {
    const bool is_rowwise = args_.direction == Direction::kRowwise;
    FillFactors(0, kPackPlaces, is_rowwise ? args_.tile.row_begin : args_.tile.col_begin);
    is_rowwise ? Rows() : Patches();
  }

 private:
  /// Quantizes blocks along rows, in batches: amaxes, scales and codes of kMicroRun items, so that
  /// the latency from the last load to the first code occurs once for many items.
  void Rows() {
    const Tile& tile = args_.tile;
    const std::size_t ahead = std::min(kMicroRun, tile.col_end - tile.col_begin);
    // The amaxes of squares need amaxes of columns: of whole vectors.
    const Length step = is_square_ && vector_.items > block_.items ? vector_ : block_;
    for (std::size_t row = tile.row_begin; row < tile.row_end; row += scheme_.block.rows) {
      if (out_.line_amaxes != nullptr) FillFactors(0, kPackPlaces, row);
      for (std::size_t col = tile.col_begin, cols; col < tile.col_end; col += cols) {
        const std::size_t left = tile.col_end - col;
        cols = left < step.items ? left : std::min(kMicroRun, step.RoundDown(left));
        RowStrip({row, std::min(scheme_.block.rows, tile.row_end - row), col, cols},
                 step.RoundUp(cols), ahead);
      }
    }
  }

  /// Quantizes blocks along columns: packs the codes of patches in the first-level cache, and
  /// writes their transposes.
  void Patches() {
    ForEachRect(args_.tile, kPatchRows, kTransposedCols, [&](const Rect& patch) { Patch(patch); });
  }

  /// Sets the factors of the places from `begin` to `end` to the factors of a line, for E4M3
  /// scales.
  void FillFactors(std::size_t begin, std::size_t end, std::size_t line) {
    if (scheme_.layout.scale_type != ScaleType::kE4M3) return;
    // The factors do not depend on the shape of the blocks.
    factors_.Fill(begin, end, Nvfp4Scheme::Prepare(out_.AmaxOf(line), args_.options));
  }

  template <class Fn>
  Fn Choose(const PackRoundings<Fn>& roundings, bool finite) const {
    if (is_stochastic_) return finite ? roundings.stochastic_finite : roundings.stochastic;
    return finite ? roundings.finite : roundings.all;
  }

  /// Computes the scales of the blocks of a strip of `cols` columns. scales.scale has one entry per
  /// unit. Returns true if the items are finite and no product rounds to more than the largest
  /// code.
  bool RowScales(const std::byte* const* rows, std::size_t count, std::size_t cols,
                 const PackScales& scales) const {
    const std::size_t blocks = block_.IndexOf(cols);
    AmaxMemory<kMicroCols> of_columns, amaxes;
    bool finite = true;
    if (is_square_) {
      finite = ComputeColumnAmaxes(amax_, {rows, count}, cols, of_columns.pattern);
      amax_of_blocks_(of_columns.pattern, blocks, amaxes.pattern);
    } else {
      finite = amax_of_blocks_(rows[0], blocks, amaxes.pattern);
    }
    const bool fits = chooses_ ? ChooseOfRows(rows, count, blocks, amaxes.pattern, finite, scales)
                               : scale_rule_.of_blocks(amaxes.pattern, blocks, factors_, scales);
    SpreadToUnits(blocks, scales.scale);
    return fits && finite;
  }

  /// Replaces the scales of blocks by one scale per unit: the scale of its block.
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

  /// Computes the candidates of the blocks of a strip, and stores the better ones. Returns true if
  /// no product of finite items with a candidate rounds to more than the largest code.
  bool ChooseOfRows(const std::byte* const* rows, std::size_t count, std::size_t blocks,
                    const std::byte* amaxes, bool finite, const PackScales& scales) const {
    const FourOverSixKernels& kernels = kernels_.four_over_six;
    ScaleCandidates candidates;
    CandidateErrors errors[kMostLines];
    const auto compute = [&](const ErrorKernels& of) {
      for (std::size_t r = 0; r < count; ++r)
        of.of_row(rows[r], blocks, factors_, errors_, candidates, errors[r]);
      for (std::size_t r = count; r < scheme_.block.rows; ++r) errors[r] = {};
      AddLines(scheme_.block.rows, blocks, errors);
    };
    const bool fits = kernels.candidates(amaxes, blocks, factors_, candidates);
    const EstimateKernels& estimate = kernels.estimates[errors_.squares];
    const bool estimates = estimate.compare != nullptr && fits && finite;
    if (estimates) compute(estimate.errors);
    const std::size_t bytes = kPackUnit * item_bytes_;
    const auto copy = [&](std::size_t block, std::size_t line, std::byte* items) {
      std::memcpy(items, rows[line] + block * bytes, bytes);
    };
    if (!estimates || !ComputeUndecided(candidates, count, blocks, 1, copy, errors[0]))
      compute(kernels.errors);
    kernels.choose_of_blocks(candidates, errors[0], blocks, scales);
    return fits;
  }
  /// Replaces estimates that leave the choice undecided by exact errors. `width` adjacent places
  /// share a block; copy(place, line, items) copies a line of the block's items. If all places or
  /// more than kMost blocks are undecided, returns false and replaces no estimate.
  template <class Copy>
  bool ComputeUndecided(const ScaleCandidates& candidates, std::size_t lines, std::size_t places,
                        std::size_t width, const Copy& copy, CandidateErrors& errors) const {
    constexpr std::size_t kMost = kPackPlaces / 4;
    const std::size_t of_block = scheme_.block.rows;
    std::uint8_t undecided[kPackPlaces];
    const CompareFn compare = kernels_.four_over_six.estimates[errors_.squares].compare;
    const std::size_t found = compare(factors_, candidates, of_block, places, errors, undecided);
    if (found == 0) return true;
    if (found == places) return false;
    std::size_t count = 0;
    for (std::size_t i = 0; i < found; ++i) {
      if (undecided[i] % width == 0) undecided[count++] = undecided[i];
    }
    if (count > kMost) return false;
    TwoLevelFactors factors;
    ScaleCandidates of_places;
    CandidateErrors exact[kMostLines];
    // Fills whole vectors of factors and candidates, because kernels read whole vectors.
    const Length floats(vector_.items / sizeof(float));
    for (std::size_t i = 0; i < floats.RoundUp(count); ++i) {
      const std::size_t place = undecided[std::min(i, count - 1)];
      factors.amax[i] = factors_.amax[place];
      factors.encode[i] = factors_.encode[place];
      for (std::size_t k = 0; k < 2; ++k) {
        of_places.of[k].value[i] = candidates.of[k].value[place];
        of_places.of[k].scale[i] = candidates.of[k].scale[place];
      }
    }
    alignas(64) std::byte items[kMost * kPackUnit * sizeof(float)];
    for (std::size_t line = 0; line < lines; ++line) {
      for (std::size_t i = 0; i < count; ++i)
        copy(undecided[i], line, items + i * kPackUnit * item_bytes_);
      kernels_.four_over_six.errors.of_row(items, count, factors, errors_, of_places, exact[line]);
    }
    for (std::size_t line = lines; line < of_block; ++line) exact[line] = {};
    AddLines(of_block, count, exact);
    for (std::size_t k = 0; k < 2; ++k) {
      for (std::size_t i = 0; i < count; ++i)
        std::fill_n(errors.of[k] + undecided[i], width, exact[0].of[k][i]);
    }
    return true;
  }
  /// Adds the errors of a block's lines to errors[0]: the second half of the lines to the first,
  /// and so on, as the reference does. Requires: `lines` is a power of two.
  static void AddLines(std::size_t lines, std::size_t blocks, CandidateErrors* errors) {
    for (std::size_t half = lines / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) {
        for (std::size_t k = 0; k < 2; ++k) {
          for (std::size_t j = 0; j < blocks; ++j) errors[i].of[k][j] += errors[i + half].of[k][j];
        }
      }
    }
  }

  /// Quantizes a strip, padded with zeros to `cols` columns of whole blocks.
  void RowStrip(const Rect& strip, std::size_t cols, std::size_t ahead) {
    const std::byte* rows[kMostLines];
    for (std::size_t r = 0; r < strip.rows; ++r) rows[r] = ItemsOf(strip, r, cols);
    alignas(64) std::byte scale_inv[kPackPlaces];
    alignas(64) float scale[kPackPlaces];
    const bool finite = RowScales(rows, strip.rows, cols, {scale_inv, scale});
    const PackRowFn pack = Choose(kernels_.row, finite);
    const bool is_edge = strip.cols < cols;
    for (std::size_t r = 0; r < strip.rows; ++r) {
      const Place next = NextPlace(args_, strip.row + r, strip.col + ahead, scheme_.block.rows);
      std::byte* codes = CodesAt(strip.row + r, strip.col);
      Draw(strip.row + r, strip.col, cols);
      const MicroRun run{rows[r], ItemsAt(args_, next, item_bytes_), is_edge ? staged_ : codes,
                         args_.nontemporal && !is_edge};
      WriteRun(micro_, run, kNontemporalAlignment, cols / kPerByte, staged_,
               [&](const MicroRun& to) { pack(to, cols / kPackUnit, scale, random_); });
      if (is_edge) std::memcpy(codes, staged_, strip.cols / kPerByte);
    }
    const std::size_t first = block_.IndexOf(strip.col), blocks = block_.CountIn(strip.cols);
    for (std::size_t r = 0; r < strip.rows; ++r)
      StoreScales(out_, 1, strip.row + r, 1, first, blocks, scale_inv);
  }

  /// Computes the random bytes of `cols` columns of a row, if rounding needs them.
  void Draw(std::size_t row, std::size_t col, std::size_t cols) {
    if (!is_stochastic_) return;
    const std::size_t runs = CeilDiv(args_.shape.cols, kRandomRun);  // of a row
    kernels_.random_of_row(args_.random, row * runs + col / kRandomRun, 1, cols / kRandomRun,
                           random_);
  }

  void Patch(const Rect& patch) {
    if (out_.line_amaxes != nullptr) {
      for (std::size_t c = 0; c < patch.cols; ++c) FillFactors(c, c + 1, patch.col + c);
    }
    for (std::size_t r = 0; r < patch.rows; r += block_.items) {
      const Rect strip{patch.row + r, std::min(block_.items, patch.rows - r), patch.col,
                       patch.cols};
      ColumnStrip(patch, strip, patch_ + r / kPerByte * kTransposedCols,
                  scales_[block_.IndexOf(r)]);
    }
    StorePatchScales(patch);
    micro_.transpose(patch_, patch.rows / kPerByte, patch.cols, CodesAt(patch.col, patch.row),
                     out_.code_stride, args_.nontemporal);
  }

  /// Quantizes one block of each column of a strip of a patch, and pads the columns with zeros to
  /// whole vectors.
  void ColumnStrip(const Rect& patch, const Rect& strip, std::byte* codes, std::byte* scale_inv) {
    static_assert(kMostRows % kPatchesAhead == 0);
    const std::byte *rows[kMostRows], *next[kMostRows];
    const std::size_t cols = vector_.RoundUp(strip.cols);
    SetRows(patch, strip, cols, rows, next);
    AmaxMemory<kMicroCols> amaxes;
    const bool has_amaxes = args_.sign_mask && TransformStrip(cols, next, rows, amaxes.pattern);
    // The transform has prefetched the next items.
    const PackedStrip in{rows, args_.sign_mask ? rows : next, strip.rows, cols};
    const bool are_finite =
        has_amaxes || ComputeColumnAmaxes(amax_, {in.rows, in.count}, cols, amaxes.pattern);
    alignas(64) float scale[kPackPlaces];
    const bool finite = ColumnScales(in, amaxes.pattern, are_finite, {scale_inv, scale});
    if (is_stochastic_) {
      const std::size_t runs = CeilDiv(args_.shape.rows, kRandomRun);  // of a column
      kernels_.random_of_columns(args_.random,
                                 kColumnwiseRuns + strip.col * runs + strip.row / kRandomRun, runs,
                                 strip.cols, random_);
    }
    Choose(kernels_.columns, finite)(in, scale, random_, codes);
  }

  /// Sets `rows` to the addresses of a strip's rows, padded with zeros to `cols` columns, and
  /// `next` to the addresses that are prefetched while the strip is encoded (NextPiece). Requires:
  /// the strip begins at a multiple of kPatchesAhead rows of its patch.
  void SetRows(const Rect& patch, const Rect& strip, std::size_t cols, const std::byte** rows,
               const std::byte** next) {
    const MatrixRows<const std::byte> in = args_.in;  // a copy, since addresses may alias it
    const std::size_t last = args_.shape.rows - 1, piece = kTransposedCols * item_bytes_;
    const Place first = NextPiece(args_, patch, strip.row - patch.row);
    const std::size_t next_offset = first.col * item_bytes_;
    for (std::size_t r = 0; r < strip.rows; ++r) rows[r] = ItemsOf(strip, r, cols);
    for (std::size_t r = 0; r < strip.rows; r += kPatchesAhead) {
      const std::byte* at = in.Row(std::min(first.row + r / kPatchesAhead, last)) + next_offset;
      at += BytesToLine(at);
      for (std::size_t i = 0; i < kPatchesAhead; ++i) next[r + i] = at + i * piece;
    }
  }

  /// Transforms a strip, which is one group of rows, and sets `rows` to the addresses of the
  /// result. Returns as TransformGroup does.
  bool TransformStrip(std::size_t cols, const std::byte* const* next, const std::byte** rows,
                      std::byte* amaxes) {
    static_assert(kPackUnit == kHadamardSize && kTransposedCols <= kTransformCols);
    const std::size_t stride = kTransposedCols * item_bytes_;
    TransformRows group;
    for (std::size_t r = 0; r < kHadamardSize; ++r) {
      group.in[r] = rows[r];
      group.next[r] = next[r];
      group.out[r] = transformed_ + r * stride;
    }
    for (std::size_t r = 0; r < kHadamardSize; ++r) rows[r] = group.out[r];
    return TransformGroup(args_.dtype, Of(*parts_.items, args_.dtype), *args_.sign_mask, group,
                          cols, amaxes);
  }

  /// Computes the scales of a strip's columns from `amaxes`. For square blocks, first replaces the
  /// amaxes of columns by the amaxes of their blocks. `finite` is true if all items are finite.
  /// Returns as RowScales does.
  bool ColumnScales(const PackedStrip& strip, std::byte* amaxes, bool finite,
                    const PackScales& scales) const {
    if (is_square_) {
      item_bytes_ == 2 ? ShareWithinSquares<std::uint16_t>(strip.cols, amaxes)
                       : ShareWithinSquares<std::uint32_t>(strip.cols, amaxes);
    }
    const bool fits = chooses_ ? ChooseOfColumns(strip, amaxes, finite, scales)
                               : scale_rule_.of_columns(amaxes, strip.cols, factors_, scales);
    return fits && finite;
  }

  /// Computes the candidates of a strip's columns, and stores the better ones. Returns as
  /// ChooseOfRows does.
  bool ChooseOfColumns(const PackedStrip& strip, const std::byte* amaxes, bool finite,
                       const PackScales& scales) const {
    const FourOverSixKernels& kernels = kernels_.four_over_six;
    ScaleCandidates candidates;
    CandidateErrors errors;
    const std::size_t lines = scheme_.block.rows;  // columns of a square
    const auto compute = [&](const ErrorKernels& of) {
      of.of_columns(strip, factors_, errors_, candidates, errors);
      if (!is_square_) return;
      for (float* of_candidate : errors.of) AddColumns(lines, strip.cols, of_candidate);
    };
    const bool fits = kernels.candidates(amaxes, strip.cols, factors_, candidates);
    const EstimateKernels& estimate = kernels.estimates[errors_.squares];
    const bool estimates = estimate.compare != nullptr && fits && finite;
    if (estimates) compute(estimate.errors);
    const auto copy = [&](std::size_t col, std::size_t line, std::byte* items) {
      const std::size_t from = (Length{lines}.RoundDown(col) + line) * item_bytes_;
      std::memset(items, 0, kPackUnit * item_bytes_);
      for (std::size_t r = 0; r < strip.count; ++r)
        std::memcpy(items + r * item_bytes_, strip.rows[r] + from, item_bytes_);
    };
    if (!estimates || !ComputeUndecided(candidates, lines, strip.cols, lines, copy, errors))
      compute(kernels.errors);
    kernels.choose_of_columns(candidates, errors, strip.cols, scales);
    return fits;
  }
  /// Replaces the error of each column by the sum over its block's columns, in AddLines' order.
  static void AddColumns(std::size_t lines, std::size_t cols, float* errors) {
    for (float* of = errors; of < errors + cols; of += lines) {
      for (std::size_t half = lines / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) of[i] += of[i + half];
      }
      std::fill_n(of, lines, of[0]);
    }
  }

  /// Replaces the amax of each column by the amax of its square block. Pattern is an integer of an
  /// amax's width.
  template <class Pattern>
  void ShareWithinSquares(std::size_t cols, std::byte* amaxes) const {
    AmaxMemory<kMicroCols> of_blocks;
    amax_of_blocks_(amaxes, cols / kPackUnit, of_blocks.pattern);
    for (std::size_t j = 0; j < cols / kPackUnit; ++j) {
      Pattern repeated[kPackUnit];
      std::memcpy(repeated, of_blocks.pattern + j * sizeof(Pattern), sizeof(Pattern));
      std::fill_n(repeated + 1, kPackUnit - 1, repeated[0]);
      std::memcpy(amaxes + j * sizeof repeated, repeated, sizeof repeated);
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
      StoreScales(out_, 1, patch.col + c, 1, first, blocks, turned + c * kPatchBlocks);
  }

  /// Returns the address of the items of a strip's r-th row or, if these are fewer than `cols`, of
  /// a copy that is padded with zeros.
  const std::byte* ItemsOf(const Rect& strip, std::size_t r, std::size_t cols) {
    const std::byte* items = args_.in.Row(strip.row + r) + strip.col * item_bytes_;
    if (strip.cols >= cols) return items;
    return PadItems(items, strip.cols * item_bytes_, cols * item_bytes_, padded_[r]);
  }
  /// Returns the address of the codes of a line from a position on.
  std::byte* CodesAt(std::size_t line, std::size_t pos) const {
    return out_.codes + line * out_.code_stride + pos / kPerByte;
  }

  const QuantizeArgs& args_;
  const TargetParts& parts_;
  const SchemeInfo& scheme_ = kSchemes[args_.scheme];
  const bool is_square_ = scheme_.block.rows > 1;
  const DirectionBuffers<std::byte>& out_ =
      args_.direction == Direction::kRowwise ? args_.rowwise : args_.columnwise;
  const MicroKernels& micro_ = *parts_.micro;
  const std::size_t item_bytes_ = ItemSize(args_.dtype);
  const AmaxKernels& amax_ = Of(micro_.amax, args_.dtype);
  const PackKernels& kernels_ = Of(*parts_.pack, args_.dtype);
  const PackScaleKernels& scale_rule_ = Of(kernels_.scales, scheme_.layout.scale_type);
  const Length block_{scheme_.block.cols};    // items of a block along its line
  const Length vector_{micro_.vector_bytes};  // codes of a vector
  const BlockAmaxFn amax_of_blocks_ = amax_.of_blocks[IndexOf(kAmaxLengths, block_.items)];
  const bool is_stochastic_ = args_.rounding == Rounding::kStochastic;
  const bool chooses_ = scheme_.layout.scale_type == ScaleType::kE4M3 &&
                        args_.options.four_over_six != FourOverSix::kOff;
  const ErrorRule errors_{args_.options.e4m3_max * kMaxValue<E2M1>,
                          args_.options.four_over_six == FourOverSix::kMeanSquaredError,
                          args_.options.four_over_six_fast_error};
  TwoLevelFactors factors_;
  alignas(64) std::byte staged_[kMicroRun];
  alignas(64) std::uint8_t random_[(kPackPlaces + kPackUnit) * kRandomRun];
  alignas(64) std::byte padded_[kMostRows][kTransposedCols * sizeof(float)];
  alignas(64) std::byte transformed_[kHadamardSize * kTransposedCols * sizeof(float)];
  alignas(64) std::byte patch_[kPatchBytes * kTransposedCols];
  alignas(64) std::byte scales_[kReadRows][kTransposedCols];  // [block][column of the patch]
};

}  // namespace

void DrivePacked(const QuantizeArgs& args, const TargetParts& parts) noexcept {
  PackedDriver(args, parts).Run();
}

}  // namespace narrowfloat::cpu
