// SPDX-License-Identifier: Apache-2.0
// The drivers of amaxes, sums of columns and the Hadamard transform: plain C++, compiled once. They
// implement the functions of KernelTable of the same names.
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/cpu/exact_transform.h"
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
/// Stores the amaxes of the tile's columns. `kernels` are those of the items' type.
void DriveColumnAmax(const MatrixRows<const std::byte>& in, const Tile& tile,
                     const AmaxKernels& kernels, float* amaxes) noexcept;
float DriveHadamard(const MatrixRows<const std::byte>& in, const Tile& tile,
                    const ItemKernels& kernels, DType dtype, std::uint32_t sign_mask,
                    const MatrixRows<std::byte>& out) noexcept;

/// Transforms `cols` columns of a group of rows by the micro-kernel, and exactly the columns that
/// this leaves to its caller. Returns true if `amaxes` has the amaxes of all columns, and these are
/// finite. Requires: cols and amaxes as TransformFn. Inline, since a call for every 128 columns
/// took 1 % of quantizing them.
inline bool TransformGroup(DType dtype, const ItemKernels& kernels, std::uint32_t sign_mask,
                           const TransformRows& rows, std::size_t cols,
                           std::byte* amaxes) noexcept {
  std::uint16_t inexact[kTransformCols];
  const std::size_t count = kernels.transform(rows, cols, sign_mask, inexact, amaxes);
  for (std::size_t i = 0; i < count; ++i) TransformExactly(dtype, rows, inexact[i], sign_mask);
  return count == 0;
}

}  // namespace narrowfloat::cpu
