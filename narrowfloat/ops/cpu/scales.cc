// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

/// Copies a buffer that is equal in both placements of scales, if present.
void CopyBuffer(const ConstQuantizedView& in, const QuantizedView& out, Role role) {
  if (in[role].data == out[role].data || in[role].data == nullptr) return;
  std::memcpy(out[role].data, in[role].data,
              FlattenShape(in[role].shape).Size() * ItemSize(in[role].dtype));
}

void PermuteScales(const ConstQuantizedView& in, const QuantizedView& out, Direction direction) {
  const DirectionBuffers<const std::byte> from = BuffersOf(in, direction);
  const DirectionBuffers<std::byte> to = BuffersOf(out, direction);
  const ScaleGrid grid = MakeScaleGrid(*in.spec.scheme, direction, FlattenShape(in.shape));
  if (grid.Items() == 0) return;  // an empty tensor may have any number of lines
  const MatrixShape kept = KeptScales(grid, out.spec);
  for (std::size_t line = 0; line < grid.padded_lines; ++line) {
    for (std::size_t block = 0; block < grid.padded_blocks; ++block) {
      const bool is_kept = line < kept.rows && block < kept.cols;
      to.scale_inv[to.strides.LineOffset(line) + to.strides.BlockOffset(block)] =
          is_kept ? from.scale_inv[from.strides.LineOffset(line) + from.strides.BlockOffset(block)]
                  : std::byte{0};
    }
  }
}

std::uint8_t ExponentOf(float scale_inv, std::size_t line, std::size_t block) {
  const std::uint32_t code = EncodeE8M0Up(scale_inv);
  if (!(scale_inv > 0.0f) || DecodeE8M0(code) != scale_inv)
    RefuseBlockScale(line, block, scale_inv);
  return static_cast<std::uint8_t>(code);
}

}  // namespace

void CpuBackend::Swizzle(const ConstQuantizedView& in, const QuantizedView& out,
                         const Execution& /*execution*/) const {
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    if (!HasDirection(in, direction)) continue;
    PermuteScales(in, out, direction);
    CopyBuffer(in, out, DataRole(direction));
    CopyBuffer(in, out, AmaxRole(direction));
  }
}

void CpuBackend::BlockScalesToMxfp8(const ConstQuantizedView& in, Direction direction,
                                    const TensorView& scales,
                                    const Execution& /*execution*/) const {
  const FloatEnvironment environment;  // 2^-127 is subnormal
  const SchemeInfo& scheme = *in.spec.scheme;
  const DirectionBuffers<const std::byte> from = BuffersOf(in, direction);
  const ScaleGrid grid = Mxfp8Grid(in, direction);
  if (grid.Items() == 0) return;  // an empty tensor may have any number of lines
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
  std::memcpy(scales.data, bytes.data(), bytes.size());
}

}  // namespace narrowfloat
