// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <vector>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/quantize.h"

namespace narrowfloat {
void CpuBackend::Dequantize(const ConstQuantizedView& in, Direction direction,
                            const TensorView& out, const Execution& execution) const {
  const StridedRows rows(out);
  const SchemeInfo& scheme = *in.spec.scheme;
  const KernelTable& kernels = execution.Kernels();
  DequantizeArgs args{SchemeIndex(scheme),
                      direction,
                      out.dtype,
                      BuffersOf(in, direction),
                      rows.shape,
                      {},
                      rows.matrix,
                      ScaleOptionsOf(in.spec, out.dtype),
                      BypassesCaches(execution, rows.shape.Size() * ItemSize(out.dtype))};
  if (NeedsAmax(scheme) && !in.spec.row_scaled)
    std::memcpy(&args.in.amax, in[AmaxRole(direction)].data, sizeof args.in.amax);
  // Decoding goes row by row, in square blocks too; long runs of a row use memory best.
  const std::size_t row_unit = direction == Direction::kRowwise ? 1 : RowUnit(scheme, direction);
  TileGrid grid = MakeTileGrid(rows.shape, row_unit, ColUnit(scheme),
                               StreamedTileElements(execution, rows.shape));
  if (args.nontemporal && direction == Direction::kColumnwise &&
      scheme.layout.columnwise_transposed) {
    // A patch accesses a few cache lines of each row or column. Every column has its own scale, so
    // that tiles may begin at any column. They may begin at any row only with 8-bit codes.
    if (rows.matrix.row_offsets == nullptr)
      grid.col_head = HeadOf(rows.matrix.data, rows.matrix.row_stride, ItemSize(out.dtype) * 8, 1);
    grid.row_head = CodesHead(args.in, scheme, scheme.element_bits == 8 ? 1 : scheme.block.cols);
  }
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    DequantizeArgs task = args;
    task.tile = grid[i];
    kernels.Dequantize(task);
  });
}

void CpuBackend::FakeQuantize(const ConstTensorView& in, const QuantSpec& spec,
                              const TensorView& out, const Execution& execution) const {
  if (execution.IsNoop()) return;
  std::array<std::vector<std::byte>, kRoleCount> memory;
  const auto view = BindBuffers<QuantizedView>(spec, in.shape, [&](const BufferPlan& buffer) {
    auto& bytes = memory[static_cast<std::size_t>(buffer.storage)];
    if (buffer.storage == buffer.role) bytes.resize(BufferBytes(buffer));
    return bytes.data();
  });
  Quantize(in, view, execution);
  Dequantize(view, spec.rowwise ? Direction::kRowwise : Direction::kColumnwise, out, execution);
}

void CpuBackend::Requantize(const ConstQuantizedView& in, Direction direction,
                            const QuantizedView& out, DType between,
                            const Execution& execution) const {
  if (execution.IsNoop()) return;
  std::vector<std::byte> memory(FlattenShape(in.shape).Size() * ItemSize(between));
  const TensorView values{memory.data(), between, in.shape};
  Dequantize(in, direction, values, execution);
  Quantize(values, out, execution);
}

}  // namespace narrowfloat
