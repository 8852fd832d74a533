// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {
namespace {

/// Writes the transpose of a matrix of codes.
template <FloatFormat F>
void TransposeMatrix(const std::byte* in, std::byte* out, MatrixShape matrix,
                     const Execution& execution) {
  constexpr std::size_t kPerByte = CodesPerByte(kBits<F>);
  // A tile's rows are a multiple of the bytes of a cache line, so that one task writes whole lines
  // of an aligned output.
  constexpr std::size_t kRun = 64;
  const std::size_t in_stride = matrix.cols / kPerByte, out_stride = matrix.rows / kPerByte;
  const TileGrid grid = MakeTileGrid(matrix, kRun, kRun);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    const Tile tile = grid[i];
    for (std::size_t col = tile.col_begin; col < tile.col_end; ++col) {
      for (std::size_t row = tile.row_begin; row < tile.row_end; row += kPerByte) {
        std::uint32_t byte = 0;
        for (std::size_t k = 0; k < kPerByte; ++k)
          byte |= LoadCode<F>(in + (row + k) * in_stride, col) << k * kBits<F>;
        out[col * out_stride + row / kPerByte] = static_cast<std::byte>(byte);
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
    TransposeMatrix<E4M3>(codes, transposed, matrix, execution);
  } else {
    TransposeMatrix<E2M1>(codes, transposed, matrix, execution);
  }
  if (scheme.block == kWholeTensor) return;
  const ConstTensorView& scales = in[Role::kRowwiseScaleInv];
  TransposeScales(scheme, matrix, scales.data, out[Role::kColumnwiseScaleInv].data,
                  ItemSize(scales.dtype));
}

void CpuBackend::TransposeCodes(const ConstTensorView& in, const TensorView& out,
                                const Execution& execution) const {
  TransposeMatrix<E4M3>(in.data, out.data, FlattenShape(in.shape), execution);
}

}  // namespace narrowfloat
