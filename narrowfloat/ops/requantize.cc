// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/requantize.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <vector>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/strided_rows.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kConvertVerb = "block_scales_to_mxfp8";

void CheckBuffersAreDisjoint(const ConstQuantizedView& in, const QuantizedView& out) {
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    for (std::size_t j = 0; j < kRoleCount; ++j) {
      if (!ExtentOf(in.buffers[i]).Overlaps(ExtentOf(out.buffers[j]))) continue;
      RefuseOverlap("requantize", fmt::format("{} of the output", RoleName(static_cast<Role>(j))),
                    RoleName(static_cast<Role>(i)));
    }
  }
}

/// Returns the codes of a direction as they are stored: a matrix whose rows are the blocks' lines.
MatrixShape StoredCodes(const ConstQuantizedView& in, Direction direction) {
  const MatrixShape matrix = FlattenShape(in.shape);
  if (direction == Direction::kRowwise) return matrix;
  return {matrix.cols, matrix.rows};
}

void CheckConvertible(const ConstQuantizedView& in, Direction direction) {
  const SchemeInfo& scheme = *in.spec.scheme;
  const bool blocks = scheme.layout.scale_type == ScaleType::kFloat32 &&
                      scheme.block != kWholeTensor && scheme.block.cols % kMxBlock == 0;
  if (!blocks) {
    throw InvalidArgument(fmt::format("{}: the scheme must have fp32 scales per block, got {}",
                                      kConvertVerb, scheme.name));
  }
  CheckDirection(kConvertVerb, in, direction);
}

ScaleGrid Mxfp8Grid(const ConstQuantizedView& in, Direction direction) {
  constexpr std::size_t kMxfp8 = IndexIn<Mxfp8Scheme<E4M3>>(AllSchemes{});
  if constexpr (kMxfp8 < kSchemeCount) {
    return MakeScaleGrid(kSchemes[kMxfp8], Direction::kRowwise, StoredCodes(in, direction));
  } else {
    throw Unsupported(fmt::format("{}: this build has no MXFP8", kConvertVerb));
  }
}

std::uint8_t ExponentOf(float scale_inv, std::size_t line, std::size_t block) {
  const auto bits = std::bit_cast<std::uint32_t>(scale_inv);
  if ((bits & ~kFloatInfinity) != 0 || bits == 0 || bits == kFloatInfinity) {
    throw InvalidArgument(fmt::format(
        "{}: the scale of line {}, block {} must be a power of two of at least 2^-126, got {}",
        kConvertVerb, line, block, scale_inv));
  }
  return static_cast<std::uint8_t>(bits >> 23);
}

}  // namespace

void Requantize(const ConstQuantizedView& in, const QuantizedView& out, DType between,
                const Execution& execution) {
  if (in.shape != out.shape) {
    throw InvalidArgument(
        fmt::format("requantize: the output must have shape {} as the input has, got {}",
                    ShapeText(in.shape), ShapeText(out.shape)));
  }
  CheckBuffers("requantize", out);
  CheckBuffersAreDisjoint(in, out);
  if (execution.IsNoop()) return;
  std::vector<std::byte> memory(FlattenShape(in.shape).Size() * ItemSize(between));
  const TensorView values{memory.data(), between, in.shape, {}, Device::kCpu};
  Dequantize(in, values, execution);
  Quantize(values, out, execution);
}

Shape Mxfp8ScalesShape(const ConstQuantizedView& in, Direction direction) {
  CheckConvertible(in, direction);
  const MatrixShape stored = Mxfp8Grid(in, direction).StoredShape();
  return {static_cast<std::int64_t>(stored.rows), static_cast<std::int64_t>(stored.cols)};
}

void BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction,
                        const TensorView& scales) {
  const Shape shape = Mxfp8ScalesShape(in, direction);
  if (scales.dtype != DType::kUInt8 || scales.shape != shape || !IsContiguous(scales)) {
    throw InvalidArgument(fmt::format(
        "{}: the output must be contiguous uint8 of shape {}, got {} "
        "of {}",
        kConvertVerb, ShapeText(shape), DTypeName(scales.dtype), ShapeText(scales.shape)));
  }
  const SchemeInfo& scheme = *in.spec.scheme;
  const DirectionBuffers<const std::byte> from = BuffersOf(in, direction);
  const ScaleGrid grid = Mxfp8Grid(in, direction);
  const ScaleStrides strides = MakeScaleStrides(grid, ScalePlacement::kSwizzled);
  const std::size_t repeats = scheme.block.cols / kMxBlock;
  std::vector<std::uint8_t> bytes(grid.Items(), 0);
  for (std::size_t line = 0; line < grid.lines; ++line) {
    for (std::size_t block = 0; block < grid.blocks; ++block) {
      const std::size_t item = from.strides.LineOffset(line / scheme.layout.lines_per_scale) +
                               from.strides.BlockOffset(block / repeats);
      float scale_inv = 0.0f;
      std::memcpy(&scale_inv, from.scale_inv + item * sizeof scale_inv, sizeof scale_inv);
      bytes[strides.LineOffset(line) + strides.BlockOffset(block)] =
          ExponentOf(scale_inv, line, block / repeats);
    }
  }
  if (!bytes.empty()) std::memcpy(scales.data, bytes.data(), bytes.size());
}

}  // namespace narrowfloat
