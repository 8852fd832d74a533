// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/hadamard.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "narrowfloat/ops/float_environment.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

void CheckRows(MatrixShape shape) {
  if (shape.rows % kHadamardSize == 0) return;
  throw InvalidArgument(fmt::format("hadamard: the number of rows must be a multiple of {}, got {}",
                                    kHadamardSize, shape.rows));
}

void CheckPair(const ConstTensorView& in, const TensorView& out, MatrixShape shape) {
  if (out.shape != in.shape || out.dtype != in.dtype) {
    throw InvalidArgument(fmt::format("hadamard: the output must be {} of shape {}, got {} of {}",
                                      DTypeName(in.dtype), ShapeText(in.shape),
                                      DTypeName(out.dtype), ShapeText(out.shape)));
  }
  CheckRows(shape);
  CheckDisjoint("hadamard", "the output", ExtentOf(out), "the input", ExtentOf(in));
}

}  // namespace

void HadamardTransform(const ConstTensorView& in, const TensorView& out, std::uint32_t sign_mask,
                       const Execution& execution) {
  StridedRows<const std::byte> rows;
  StridedRows<std::byte> out_rows;
  FillRows("hadamard", "the input", in, rows);
  FillRows("hadamard", "the output", out, out_rows);
  CheckPair(in, out, rows.shape);
  const KernelTable& kernels = execution.Kernels();
  const HadamardFn transform = kernels.hadamard[static_cast<std::size_t>(in.dtype)];
  const TileGrid grid = MakeTileGrid(rows.shape, kHadamardSize, 1);
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    const Tile tile = grid[i];
    std::vector<std::ptrdiff_t> offsets;
    for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
      offsets.push_back(out_rows.matrix.Row(r) - out_rows.matrix.data +
                        static_cast<std::ptrdiff_t>(tile.col_begin * ItemSize(in.dtype)));
    }
    transform(rows.matrix, tile, sign_mask, {out_rows.matrix.data, 0, offsets.data()});
  });
}

float HadamardAmax(const ConstTensorView& in, std::uint32_t sign_mask, const Execution& execution) {
  StridedRows<const std::byte> rows;
  FillRows("hadamard", "the input", in, rows);
  CheckRows(rows.shape);
  const KernelTable& kernels = execution.Kernels();
  const AmaxFn amax = kernels.amax[static_cast<std::size_t>(in.dtype)];
  const FloatEnvironment environment;
  const TileGrid grid = MakeTileGrid(rows.shape, kHadamardSize, 1);
  std::vector<float> amaxes(grid.Count());
  ParallelFor(execution, grid.Count(), [&](std::size_t i) {
    amaxes[i] = amax(TransformTile(kernels, in.dtype, rows.matrix, grid[i], sign_mask), grid[i]);
  });
  return amaxes.empty() ? 0.0f : *std::max_element(amaxes.begin(), amaxes.end());
}

MatrixRows<const std::byte> TransformTile(const KernelTable& kernels, DType dtype,
                                          const MatrixRows<const std::byte>& in, const Tile& tile,
                                          std::uint32_t sign_mask) {
  static thread_local std::vector<std::byte> memory;
  const std::size_t item = ItemSize(dtype);
  const std::size_t stride = (tile.col_end - tile.col_begin) * item;
  if (const std::size_t bytes = (tile.row_end - tile.row_begin) * stride; memory.size() < bytes)
    memory.resize(bytes);
  const auto row_stride = static_cast<std::ptrdiff_t>(stride);
  kernels.hadamard[static_cast<std::size_t>(dtype)](in, tile, sign_mask,
                                                    {memory.data(), row_stride});
  // Moves the origin so that row r and column c of the input are found under the tile's counting.
  const std::size_t before = tile.row_begin * stride + tile.col_begin * item;
  return {memory.data() - before, row_stride};
}

}  // namespace narrowfloat
