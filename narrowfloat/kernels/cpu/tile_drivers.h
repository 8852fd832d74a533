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
/// Calls the reference for columns whose sums the micro-kernel cannot add exactly.
void DriveHadamard(const MatrixRows<const std::byte>& in, const Tile& tile,
                   const ItemKernels& kernels, DType dtype, std::uint32_t sign_mask,
                   const MatrixRows<std::byte>& out) noexcept;

}  // namespace narrowfloat::cpu
