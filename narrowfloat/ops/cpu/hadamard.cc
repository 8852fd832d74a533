// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/hadamard.h"

#include <cstring>
#include <vector>

#include "narrowfloat/numerics/hadamard.h"
#include "narrowfloat/ops/cpu/amax.h"
#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cpu/kernel_arguments.h"
#include "narrowfloat/ops/cpu/strided_rows.h"
#include "narrowfloat/ops/cpu/tiles.h"
#include "narrowfloat/ops/parallel.h"

namespace narrowfloat {

MatrixRows<const std::byte> TransformTile(const KernelTable& kernels, DType dtype,
                                          const MatrixRows<const std::byte>& in, const Tile& tile,
                                          std::uint32_t sign_mask) {
  static thread_local std::vector<std::byte> memory;
  const std::size_t stride = (tile.col_end - tile.col_begin) * ItemSize(dtype);
  if (const std::size_t bytes = (tile.row_end - tile.row_begin) * stride; memory.size() < bytes)
    memory.resize(bytes);
  const MatrixRows<std::byte> out{memory.data(), static_cast<std::ptrdiff_t>(stride)};
  kernels.Hadamard(dtype, in, tile, sign_mask, out);
  return {out.data, out.row_stride};
}

float TransformedTileAmax(const KernelTable& kernels, DType dtype,
                          const MatrixRows<const std::byte>& in, const Tile& tile,
                          std::uint32_t sign_mask) {
  return kernels.Amax(dtype, TransformTile(kernels, dtype, in, tile, sign_mask),
                      {0, tile.row_end - tile.row_begin, 0, tile.col_end - tile.col_begin});
}

void CpuBackend::HadamardTransform(const ConstTensorView& in, const TensorView& out,
                                   std::uint32_t sign_mask, const Execution& execution) const {
  StridedRows<const std::byte> rows;
  StridedRows<std::byte> out_rows;
  FillRows(in, rows);
  FillRows(out, out_rows);
  const KernelTable& kernels = execution.Kernels();
  const TileGrid grid = MakeTileGrid(rows.shape, kHadamardSize, 1);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    const Tile tile = grid[i];
    std::vector<std::ptrdiff_t> offsets;
    for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
      offsets.push_back(out_rows.matrix.Row(r) - out_rows.matrix.data +
                        static_cast<std::ptrdiff_t>(tile.col_begin * ItemSize(in.dtype)));
    }
    kernels.Hadamard(in.dtype, rows.matrix, tile, sign_mask,
                     {out_rows.matrix.data, 0, offsets.data()});
  });
}

void CpuBackend::HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask, std::byte* amax,
                              const Execution& execution) const {
  StridedRows<const std::byte> rows;
  FillRows(in, rows);
  const KernelTable& kernels = execution.Kernels();
  const TileGrid grid = MakeTileGrid(rows.shape, kHadamardSize, 1);
  const float largest = LargestAmax(grid, execution, [&](const Tile& tile) {
    return TransformedTileAmax(kernels, in.dtype, rows.matrix, tile, sign_mask);
  });
  std::memcpy(amax, &largest, sizeof largest);
}

}  // namespace narrowfloat
