// SPDX-License-Identifier: Apache-2.0
// The drivers of amaxes, sums of columns and the Hadamard transform: plain C++, compiled once. They
// implement the functions of KernelTable of the same names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::cpu {

float DriveAmax(const MatrixRows<const std::byte>& in, const Tile& tile,
                const ItemKernels& kernels) noexcept;
void DriveColumnSum(const MatrixRows<const std::byte>& in, const Tile& tile,
                    const ItemKernels& kernels, float* sums) noexcept;
float DriveAmaxSum(const MatrixRows<const std::byte>& in, const Tile& tile,
                   const ItemKernels& kernels, float* sums) noexcept;
/// Any format's kernels serve: the amaxes of items do not depend on it.
void DriveColumnAmax(const MatrixRows<const std::byte>& in, const Tile& tile,
                     const AmaxKernels& kernels, float* amaxes) noexcept;
float DriveHadamard(const MatrixRows<const std::byte>& in, const Tile& tile,
                    const ItemKernels& kernels, DType dtype, std::uint32_t sign_mask,
                    const MatrixRows<std::byte>& out) noexcept;

/// A group of kHadamardSize rows of a tensor, from `row` and `col` on, that is transformed.
struct HadamardGroup {
  const MatrixRows<const std::byte>& in;
  DType dtype;
  std::uint32_t sign_mask;
  std::size_t row, col;
};
/// Transforms `cols` columns of a group by the micro-kernel, and by the reference the columns that
/// this leaves to its caller. `rows` has the addresses of the group's items, or of a copy that is
/// padded with zeros. Returns true if `amaxes` has the amaxes of all columns, and these are finite.
/// Requires: cols and amaxes as TransformFn. Inline, since a call for every 128 columns took 1 % of
/// quantizing them.
inline bool TransformGroup(const HadamardGroup& group, const ItemKernels& kernels,
                           const TransformRows& rows, std::size_t cols,
                           std::byte* amaxes) noexcept {
  std::uint16_t inexact[kTransformCols];
  const std::size_t count = kernels.transform(rows, cols, group.sign_mask, inexact, amaxes);
  std::ptrdiff_t offsets[kHadamardSize];
  for (std::size_t k = 0; count > 0 && k < kHadamardSize; ++k)
    offsets[k] = rows.out[k] - rows.out[0];
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t col = group.col + inexact[i];
    ScalarKernels().Hadamard(group.dtype, group.in,
                             {group.row, group.row + kHadamardSize, col, col + 1}, group.sign_mask,
                             {rows.out[0] + inexact[i] * kernels.item_bytes, 0, offsets});
  }
  return count == 0;
}

}  // namespace narrowfloat::cpu
