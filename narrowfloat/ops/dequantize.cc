// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dequantize.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <vector>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/strided_rows.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

Direction ReadableDirection(const ConstQuantizedView& in) {
  if (HasDirection(in, Direction::kRowwise)) return Direction::kRowwise;
  if (HasDirection(in, Direction::kColumnwise)) return Direction::kColumnwise;
  throw InvalidArgument(
      fmt::format("dequantize: {} needs data and scale_inv of one direction, got neither rowwise "
                  "nor columnwise",
                  in.spec.scheme->name));
}

void CheckOutput(const ConstQuantizedView& in, Direction direction, const TensorView& out) {
  if (out.shape != in.shape) {
    throw InvalidArgument(fmt::format("dequantize: the output must have shape {}, got {}",
                                      ShapeText(in.shape), ShapeText(out.shape)));
  }
  const Extent output = ExtentOf(out);
  for (const Role role : {DataRole(direction), ScaleInvRole(direction)}) {
    CheckDisjoint("dequantize", "the output", output, RoleName(role), ExtentOf(in[role]));
  }
}

}  // namespace

void Dequantize(const ConstQuantizedView& in, const TensorView& out, const Execution& execution) {
  const Direction direction = ReadableDirection(in);
  CheckDirection("dequantize", in, direction);
  StridedRows<std::byte> rows;
  FillRows("dequantize", "the output", out, rows);
  CheckOutput(in, direction, out);

  const KernelTable& kernels = execution.Kernels();
  const DequantizeFn dequantize =
      kernels.dequantize[SchemeIndex(*in.spec.scheme)][static_cast<std::size_t>(direction)]
                        [static_cast<std::size_t>(out.dtype)];
  DequantizeArgs args{BuffersOf(in, direction),
                      rows.shape,
                      {},
                      rows.matrix,
                      ScaleOptionsOf(in.spec, out.dtype),
                      BypassesCaches(execution, rows.shape.Size() * ItemSize(out.dtype))};
  if (in[AmaxRole(direction)].data != nullptr && args.in.line_amaxes == nullptr)
    std::memcpy(&args.in.amax, in[AmaxRole(direction)].data, sizeof args.in.amax);
  const SchemeInfo& scheme = *in.spec.scheme;
  const TileGrid grid = MakeTileGrid(rows.shape, RowUnit(scheme, direction), ColUnit(scheme));
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    DequantizeArgs task = args;
    task.tile = grid[i];
    dequantize(task);
  });
}

void FakeQuantize(const ConstTensorView& in, const QuantSpec& spec, const TensorView& out,
                  const Execution& execution) {
  if (out.shape != in.shape) {
    throw InvalidArgument(fmt::format("fake_quantize: the output must have shape {}, got {}",
                                      ShapeText(in.shape), ShapeText(out.shape)));
  }
  const bool same = out.data == in.data && out.dtype == in.dtype && out.strides == in.strides;
  if (!same && ExtentOf(in).Overlaps(ExtentOf(out))) {
    throw InvalidArgument("fake_quantize: the output must be the input or not overlap it");
  }
  StridedRows<std::byte> output;
  FillRows("fake_quantize", "the output", out, output);
  if (execution.IsNoop()) return;
  std::array<std::vector<std::byte>, kRoleCount> memory;
  const auto view = BindBuffers<QuantizedView>(spec, in.shape, [&](const BufferPlan& buffer) {
    auto& bytes = memory[static_cast<std::size_t>(buffer.storage)];
    if (buffer.storage == buffer.role) bytes.resize(BufferBytes(buffer));
    return bytes.data();
  });
  Quantize(in, view, execution);
  Dequantize(view, out, execution);
}

}  // namespace narrowfloat
