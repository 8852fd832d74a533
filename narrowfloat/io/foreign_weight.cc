// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/foreign_weight.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/schemes/mxfp8.h"
#include "narrowfloat/schemes/nvfp4.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat::io {
namespace {

std::size_t Dimension(const Shape& shape, std::size_t from_the_end) {
  return shape.size() <= from_the_end
             ? 1
             : static_cast<std::size_t>(shape[shape.size() - 1 - from_the_end]);
}

/// Returns the grid of swizzled scales. Requires: the weight has one matrix.
ScaleGrid SwizzledGrid(const ForeignWeight& weight, BlockShape block) {
  const std::size_t lines = CeilDiv(weight.rows, block.rows);
  const std::size_t blocks = CeilDiv(weight.cols, block.cols);
  return {.lines = lines,
          .blocks = blocks,
          .padded_lines = RoundUp(lines, kSwizzleLines),
          .padded_blocks = RoundUp(blocks, kSwizzleBlocks),
          .order = ScaleOrder::kLineMajor};
}

/// Returns the allowed dimensions before the last two of the scales: as in the codes, merged to
/// one, or none for one matrix.
std::vector<Shape> LeadingDimensions(const ForeignWeight& weight) {
  Shape own(weight.shape.begin(), weight.shape.end() - 2);
  if (FlattenShape(own).Size() != weight.matrices) own.clear();  // one scale for all matrices
  const bool merges = own.size() > 1, omits = weight.matrices == 1 && !own.empty();
  std::vector<Shape> leading = {std::move(own)};
  if (merges) leading.push_back({static_cast<std::int64_t>(weight.matrices)});
  if (omits) leading.emplace_back();
  return leading;
}

/// Returns the allowed shapes of the scales of one matrix. One scale per row: [N, 1] and [N], never
/// [1, N], which is a row of tiles.
std::vector<Shape> MatrixShapes(const ForeignWeight& weight, BlockShape block) {
  const auto rows = static_cast<std::int64_t>(CeilDiv(weight.rows, block.rows));
  const auto cols = static_cast<std::int64_t>(CeilDiv(weight.cols, block.cols));
  std::vector<Shape> shapes = {{rows, cols}, {rows, 1, cols, 1}};  // the second one: ModelOpt
  if (block == BlockShape{weight.rows, weight.cols}) shapes.insert(shapes.end(), {{}, {1}});
  if (block.rows == 1 && cols == 1) shapes.push_back({rows});
  // Llama 4: in the float tensor's orientation, or transposed.
  if (block == BlockShape{weight.rows, 1}) shapes.insert(shapes.end(), {{cols}, {cols, 1}});
  return shapes;
}

/// Returns whether a shape of scales fits a block size; for swizzled scales, any shape with as many
/// items as the padded grid.
bool Fits(const ForeignWeight& weight, BlockShape block, const Shape& scale) {
  if (weight.swizzled) {
    return weight.matrices == 1 &&
           FlattenShape(scale).Size() == SwizzledGrid(weight, block).Items();
  }
  for (const Shape& leading : LeadingDimensions(weight)) {
    for (const Shape& matrix : MatrixShapes(weight, block)) {
      Shape shape = leading;
      shape.insert(shape.end(), matrix.begin(), matrix.end());
      if (scale == shape) return true;
    }
  }
  const bool whole = block == BlockShape{weight.rows, weight.cols} && weight.matrices == 1;
  return whole && std::ranges::all_of(scale, [](auto size) { return size == 1; });
}

/// Returns whether every value has the same scale under two block sizes.
bool SameScales(const ForeignWeight& weight, BlockShape a, BlockShape b) {
  const auto same = [](std::size_t size, std::size_t one, std::size_t other) {
    return one == other || (CeilDiv(size, one) == 1 && CeilDiv(size, other) == 1);
  };
  return same(weight.rows, a.rows, b.rows) && same(weight.cols, a.cols, b.cols);
}

/// Returns the shapes of scales that fit a weight, as text: "2x2 for blocks of 128x128 or ...".
std::string ExpectedText(const ForeignWeight& weight, std::span<const BlockShape> candidates) {
  std::string text;
  for (const BlockShape block : candidates) {
    std::vector<std::size_t> shape = {CeilDiv(weight.rows, block.rows),
                                      CeilDiv(weight.cols, block.cols)};
    if (weight.swizzled) {
      const ScaleGrid grid = SwizzledGrid(weight, block);
      shape = {grid.padded_lines, grid.padded_blocks};
    }
    if (weight.matrices > 1) shape.insert(shape.begin(), weight.matrices);
    text +=
        fmt::format("{}{}{} for blocks of {}x{}", text.empty() ? "" : " or ", fmt::join(shape, "x"),
                    weight.swizzled ? " in tiles" : "", block.rows, block.cols);
  }
  return text;
}

/// Returns whether the scales fit 6-bit codes, four of which are stored in three bytes.
bool IsMxfp6(const ForeignWeight& weight, const Shape& scale) {
  if (!weight.Packed() || !HoldsExponents(weight.scale)) return false;
  ForeignWeight six_bits = weight;
  six_bits.cols = weight.cols / 2 * 4 / 3;
  return six_bits.cols * 3 / 2 == weight.cols && Fits(six_bits, {1, kMxBlock}, scale);
}

/// Returns the block with sizes of 0 replaced by the matrix's sizes.
BlockShape Resolved(const ForeignWeight& weight, BlockShape block) {
  return {block.rows == 0 ? weight.rows : block.rows, block.cols == 0 ? weight.cols : block.cols};
}

/// Returns the block shapes that files use, most common first.
std::vector<BlockShape> Candidates(const ForeignWeight& weight) {
  if (weight.scale == FileDType::kF8E4M3) return {{1, kNvfp4Block}};
  std::vector<BlockShape> candidates;
  if (HoldsExponents(weight.scale)) candidates.push_back({1, kMxBlock});
  if (weight.swizzled) return candidates;
  if (!weight.Packed()) candidates.push_back({kFp8Block, kFp8Block});
  if (!HoldsExponents(weight.scale)) {
    candidates.insert(candidates.end(),
                      {{weight.rows, weight.cols}, {1, weight.cols}, {1, kFp8Block}});
  }
  return candidates;
}

/// Sets the shape of the codes' matrices, counted in values.
void SetShape(ForeignWeight& weight, const WeightNames& names, const TensorEntry& codes) {
  Shape shape = codes.shape;
  if (names.blocked && shape.size() == 4) {
    shape[2] *= shape[3];
    shape.pop_back();
  }
  // F4 counts values already.
  if (weight.Packed() && codes.dtype != FileDType::kF4 && !shape.empty()) shape.back() *= 2;
  weight.cols = Dimension(shape, 0);
  weight.rows = Dimension(shape, 1);
  for (std::size_t i = 2; i < shape.size(); ++i) weight.matrices *= Dimension(shape, i);
  weight.transposed = names.plain_is_transposed;
  if (weight.transposed) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  weight.shape = std::move(shape);
}

/// The arguments of DescribeWeight.
struct Description {
  const std::string& source;
  const WeightNames& names;
  const TensorEntry &codes, &scale;
  const TensorEntry* global;
  const WeightHints& hints;

  [[noreturn]] void Refuse(const std::string& rule) const {
    throw InvalidArgument(fmt::format("{}: {}", source, rule));
  }
};

void CheckScaleType(const Description& given, const ForeignWeight& weight) {
  const TensorEntry &codes = given.codes, &scale = given.scale;
  if (!WideFloat(scale.dtype) && !HoldsExponents(scale.dtype) &&
      scale.dtype != FileDType::kF8E4M3) {
    given.Refuse(fmt::format("'{}' must be a scale, got {}", scale.name, Info(scale.dtype).name));
  }
  if (weight.Packed() && WideFloat(scale.dtype)) {  // int8, not FP4
    given.Refuse(fmt::format("'{}' ({}) must hold FP8 codes to have scales of {}, as '{}' does",
                             codes.name, Info(codes.dtype).name, Info(scale.dtype).name,
                             scale.name));
  }
  if (scale.dtype == FileDType::kF8E4M3 && given.global == nullptr && given.hints.needs_global) {
    given.Refuse(fmt::format("'{}' needs a scale of the whole tensor beside it, which is missing",
                             scale.name));
  }
}

void SetGlobal(const Description& given, ForeignWeight& weight) {
  if (given.global == nullptr) return;
  const TensorEntry& global = *given.global;
  weight.global = given.names.global_scale;
  weight.globals = FlattenShape(global.shape).Size();
  if (global.dtype == FileDType::kF32 &&
      (weight.globals == 1 || weight.globals == weight.matrices)) {
    return;
  }
  given.Refuse(fmt::format("'{}' must be one F32{}, got {} {}", global.name,
                           weight.matrices > 1 ? ", or one for each matrix" : "",
                           Info(global.dtype).name, ShapeText(global.shape)));
}

void CheckPacking(const Description& given, const ForeignWeight& weight) {
  if (!weight.Packed()) return;
  if (weight.cols % 2 != 0) {  // F4: a byte would have codes of two rows
    given.Refuse(fmt::format("'{}' must have rows of an even number of values, got {}",
                             given.codes.name, weight.cols));
  }
  const auto& block = given.hints.block;
  if (block && block->cols % 2 != 0) {
    given.Refuse(fmt::format("'{}' must have blocks of an even number of columns, got {}x{}",
                             given.codes.name, block->rows, block->cols));
  }
}

/// Returns the block that fits the shape of the stored scales: the described block if it fits, else
/// the first common one. Rejects a shape that fits blocks with other scales too.
BlockShape FindBlock(const Description& given, const ForeignWeight& weight) {
  const TensorEntry &codes = given.codes, &scale = given.scale;
  std::vector<BlockShape> candidates = given.names.scales_of_columns
                                           ? std::vector<BlockShape>{{weight.rows, 1}}
                                           : Candidates(weight);
  const bool described =
      given.hints.block && !given.names.scales_of_columns && weight.scale != FileDType::kF8E4M3;
  if (described) {
    const BlockShape block = Resolved(weight, *given.hints.block);
    if (Fits(weight, block, scale.shape)) return block;
    if (std::ranges::find(candidates, block) == candidates.end()) {
      candidates.insert(candidates.begin(), block);
    }
  }
  std::optional<BlockShape> found;
  for (const BlockShape candidate : candidates) {
    if (!Fits(weight, candidate, scale.shape)) continue;
    if (!found) found = candidate;
    if (SameScales(weight, *found, candidate)) continue;
    given.Refuse(fmt::format(
        "'{}' of {} {} needs a configuration that says its blocks, those of '{}' ({} {}) may be "
        "{}x{} or {}x{}",
        scale.name, Info(scale.dtype).name, ShapeText(scale.shape), codes.name,
        Info(codes.dtype).name, ShapeText(codes.shape), found->rows, found->cols, candidate.rows,
        candidate.cols));
  }
  if (found) return *found;
  if (IsMxfp6(weight, scale.shape)) {
    throw Unsupported(
        fmt::format("{}: '{}' ({} {}) is not supported, its scales are those of MXFP6",
                    given.source, codes.name, Info(codes.dtype).name, ShapeText(codes.shape)));
  }
  given.Refuse(fmt::format("'{}' of {} {} must have one scale for each block of '{}' ({} {}): {}",
                           scale.name, Info(scale.dtype).name, ShapeText(scale.shape), codes.name,
                           Info(codes.dtype).name, ShapeText(codes.shape),
                           ExpectedText(weight, candidates)));
}

}  // namespace

bool MayHoldCodes(FileDType dtype) {
  return dtype == FileDType::kF8E4M3 || dtype == FileDType::kF8E5M2 || dtype == FileDType::kF4 ||
         dtype == FileDType::kU8 || dtype == FileDType::kI8;
}

bool HoldsExponents(FileDType dtype) {
  return dtype == FileDType::kF8E8M0 || dtype == FileDType::kU8;
}

std::string_view ElementOf(const ForeignWeight& weight) {
  return weight.codes == FileDType::kF8E4M3   ? E4M3::kName
         : weight.codes == FileDType::kF8E5M2 ? E5M2::kName
                                              : E2M1::kName;
}

std::string FormatText(const ForeignWeight& weight) {
  const bool whole = weight.block == BlockShape{weight.rows, weight.cols} && !weight.tiled;
  const std::string block = whole ? (weight.matrices > 1 ? "matrix" : "tensor")
                            : weight.block == BlockShape{1, weight.cols} && !weight.tiled
                                ? "row"
                                : fmt::format("{}x{}", weight.block.rows, weight.block.cols);
  const FileDType scale = weight.scale == FileDType::kU8 ? FileDType::kF8E8M0 : weight.scale;
  return fmt::format("{} {} {}", ElementOf(weight), block, Info(scale).name);
}

ForeignWeight DescribeWeight(const std::string& source, const WeightNames& names,
                             const TensorEntry& codes, const TensorEntry& scale,
                             const TensorEntry* global, const WeightHints& hints) {
  const Description given{source, names, codes, scale, global, hints};
  ForeignWeight weight{.codes = codes.dtype,
                       .scale = scale.dtype,
                       .swizzled = hints.swizzled,
                       .high_half_first = hints.high_half_first};
  if (codes.shape.size() < 2)
    given.Refuse(fmt::format("'{}' must have two dimensions or more, got shape {}", codes.name,
                             ShapeText(codes.shape)));
  if (FlattenShape(codes.shape).Size() == 0)
    given.Refuse(fmt::format("'{}' must not be empty", codes.name));
  SetShape(weight, names, codes);
  CheckScaleType(given, weight);
  SetGlobal(given, weight);
  CheckPacking(given, weight);
  const bool one_scale = WideFloat(scale.dtype) && FlattenShape(scale.shape).Size() == 1;
  if (one_scale && global == nullptr && !weight.transposed && !names.scales_of_columns) {
    weight.rows *= std::exchange(weight.matrices, 1);
  }
  weight.block = FindBlock(given, weight);
  // ModelOpt's scales [rows, 1, cols, 1] always belong to tiles.
  const bool of_tiles = scale.shape.size() == codes.shape.size() + 2;
  weight.tiled = (hints.for_all_weights && hints.block == weight.block) ||
                 (of_tiles && weight.block == BlockShape{kFp8Block, kFp8Block});
  return weight;
}

BlockShape WholeBlock(const MatrixShape& matrix) {
  return {std::max<std::size_t>(matrix.rows, 1), std::max<std::size_t>(matrix.cols, 1)};
}

ForeignWeight UnscaledWeight(const TensorEntry& codes) {
  const MatrixShape matrix = FlattenShape(codes.shape);
  return {.codes = codes.dtype,
          .scale = FileDType::kF32,
          .rows = matrix.rows,
          .cols = matrix.cols,
          .block = WholeBlock(matrix),
          .shape = codes.shape};
}

ForeignBytes NamedParts(std::span<const std::span<const std::byte>> tensors) {
  static constexpr float kOne = 1;
  return {.codes = tensors[0],
          .scale = tensors.size() > 1 ? tensors[1] : std::as_bytes(std::span(&kOne, 1)),
          .global = tensors.size() > 2 ? tensors[2] : std::span<const std::byte>()};
}

std::vector<std::byte> ScalesByRow(const ForeignWeight& weight, std::span<const std::byte> scale) {
  const ScaleGrid grid = SwizzledGrid(weight, weight.block);
  const ScaleStrides strides = MakeScaleStrides(grid, ScalePlacement::kSwizzled);
  std::vector<std::byte> out(grid.lines * grid.blocks);
  for (std::size_t line = 0; line < grid.lines; ++line) {
    for (std::size_t block = 0; block < grid.blocks; ++block) {
      out[line * grid.blocks + block] =
          scale[strides.LineOffset(line) + strides.BlockOffset(block)];
    }
  }
  return out;
}

std::vector<std::byte> ExchangeHalves(std::span<const std::byte> codes) {
  std::vector<std::byte> out(codes.size());
  std::ranges::transform(codes, out.begin(), [](std::byte pair) { return pair << 4 | pair >> 4; });
  return out;
}

}  // namespace narrowfloat::io
