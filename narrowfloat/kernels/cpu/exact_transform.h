// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::cpu {

/// Writes the random Hadamard transform of one column of any items: the reference's bytes, in a
/// fifteenth of the reference's time. Compiled once, because few columns need it.
void TransformExactly(DType dtype, const TransformRows& rows, std::size_t col,
                      std::uint32_t sign_mask) noexcept;

/// Transforms `cols` columns of a group of rows by the micro-kernel, and the columns with inexact
/// sums by TransformExactly. Returns true if `amaxes` has the amaxes of all columns, and these are
/// finite. Requires: cols and amaxes as TransformFn requires them. Inline, because a call for every
/// 128 columns took 1 % of the time of quantizing them.
inline bool TransformGroup(DType dtype, const ItemKernels& kernels, std::uint32_t sign_mask,
                           const TransformRows& rows, std::size_t cols,
                           std::byte* amaxes) noexcept {
  std::uint16_t inexact[kTransformCols];
  const std::size_t count = kernels.transform(rows, cols, sign_mask, inexact, amaxes);
  for (std::size_t i = 0; i < count; ++i) TransformExactly(dtype, rows, inexact[i], sign_mask);
  return count == 0;
}

}  // namespace narrowfloat::cpu
