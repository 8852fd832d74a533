// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {
namespace {

void TransposeBytes(const std::byte* in, std::byte* out, MatrixShape matrix,
                    const Execution& execution) {
  // A tile's rows are a multiple of the bytes of a cache line, so that one task writes whole lines
  // of an aligned output.
  constexpr std::size_t kRun = 64;
  const TileGrid grid = MakeTileGrid(matrix, kRun, kRun);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    const Tile tile = grid[i];
    for (std::size_t col = tile.col_begin; col < tile.col_end; ++col) {
      for (std::size_t row = tile.row_begin; row < tile.row_end; ++row) {
        out[col * matrix.rows + row] = in[row * matrix.cols + col];
      }
    }
  });
}

/// Returns a column's 4-bit code in the low half of a byte. A stored low half is an even column's.
std::byte NibbleAt(const std::byte* row, std::size_t col) {
  const std::byte both = row[col / 2];
  return col % 2 == 0 ? both & std::byte{0x0F} : both >> 4;
}

void TransposeNibbles(const std::byte* in, std::byte* out, MatrixShape matrix,
                      const Execution& execution) {
  constexpr std::size_t kRun = 64;
  const std::size_t in_stride = matrix.cols / 2, out_stride = matrix.rows / 2;
  const TileGrid grid = MakeTileGrid(matrix, kRun, kRun);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    const Tile tile = grid[i];
    for (std::size_t col = tile.col_begin; col < tile.col_end; ++col) {
      for (std::size_t row = tile.row_begin; row < tile.row_end; row += 2) {
        const std::byte low = NibbleAt(in + row * in_stride, col);
        const std::byte high = NibbleAt(in + (row + 1) * in_stride, col);
        out[col * out_stride + row / 2] = low | high << 4;
      }
    }
  });
}

/// Writes every columnwise scale: the rowwise scale of the tile with the scale's first element.
void TransposeScales(const SchemeInfo& scheme, MatrixShape matrix, const std::byte* in,
                     std::byte* out, std::size_t item_bytes) {
  const ScaleGrid rows = MakeScaleGrid(scheme, Direction::kRowwise, matrix);
  const ScaleGrid columns = MakeScaleGrid(scheme, Direction::kColumnwise, matrix);
  if (columns.Items() == 0) return;  // an empty tensor may have any number of columns
  const ScaleStrides from = MakeScaleStrides(rows, ScalePlacement::kCompact);
  const ScaleStrides to = MakeScaleStrides(columns, ScalePlacement::kCompact);
  const std::size_t lines = scheme.layout.lines_per_scale;
  std::memset(out, 0, columns.Items() * item_bytes);
  for (std::size_t i = 0; i < columns.lines; ++i) {
    for (std::size_t j = 0; j < columns.blocks; ++j) {
      const std::size_t source = from.LineOffset(j * scheme.block.rows / lines) +
                                 from.BlockOffset(i * lines / scheme.block.cols);
      std::memcpy(out + (to.LineOffset(i) + to.BlockOffset(j)) * item_bytes,
                  in + source * item_bytes, item_bytes);
    }
  }
}

}  // namespace

void CpuBackend::DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                                  const Execution& execution) const {
  const SchemeInfo& scheme = *in.spec.scheme;
  const MatrixShape matrix = FlattenShape(in.shape);
  const std::byte* codes = in[Role::kRowwiseData].data;
  std::byte* transposed = out[Role::kColumnwiseData].data;
  if (scheme.element_bits == 8) {
    TransposeBytes(codes, transposed, matrix, execution);
  } else {
    TransposeNibbles(codes, transposed, matrix, execution);
  }
  if (scheme.block == kWholeTensor) return;
  const ConstTensorView& scales = in[Role::kRowwiseScaleInv];
  TransposeScales(scheme, matrix, scales.data, out[Role::kColumnwiseScaleInv].data,
                  ItemSize(scales.dtype));
}

void CpuBackend::TransposeCodes(const ConstTensorView& in, const TensorView& out,
                                const Execution& execution) const {
  TransposeBytes(in.data, out.data, FlattenShape(in.shape), execution);
}

}  // namespace narrowfloat
