// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of items that are not encoded: amaxes, sums of columns and the Hadamard transform.
// They depend on no tensor; the drivers in tile_drivers.cc call them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/numerics/hadamard.h"

namespace narrowfloat::cpu {

/// A multiple of the 16-bit items of every instruction set's vectors.
inline constexpr std::size_t kColumnUnit = 32;
/// Most columns of one call of TransformFn.
inline constexpr std::size_t kTransformCols = 1024;

/// Returns the largest magnitude of `count` adjacent items, NaN ignored; 0 if `count` is 0.
/// Example: {-2, NaN, 1} gives 2.
using RunAmaxFn = float (*)(const std::byte* items, std::size_t count) noexcept;

/// Adds `count` rows of `cols` items to the fp32 sums of their columns, in the order of the rows.
/// If `amax` is not null, sets it to the largest magnitude of all items, NaN if one is NaN.
/// Requires: cols is a multiple of kColumnUnit. Example: rows {1, 2, ...} and {4, 8, ...} added to
/// sums {0.5, 0, ...} give {5.5, 10, ...}.
using AddRowsFn = void (*)(const std::byte* const* rows, std::size_t count, std::size_t cols,
                           float* sums, float* amax) noexcept;

/// Addresses of the rows of a group: its items, the items to prefetch meanwhile, and the outputs of
/// its transform.
struct TransformRows {
  std::array<const std::byte*, kHadamardSize> in, next;
  std::array<std::byte*, kHadamardSize> out;
};
/// Writes the random Hadamard transform of `cols` columns of a group, rounded once, and the amaxes
/// of the outputs by column, as patterns of the items' type. Stores in `inexact` the indices of the
/// columns that the caller must transform, and returns their number: a sum may be inexact, or an
/// output is not finite. Outputs and amaxes of these columns are invalid. Requires: cols is a
/// multiple of the 16-bit items of a vector and at most kTransformCols, the length of `inexact` and
/// `amaxes`.
using TransformFn = std::size_t (*)(const TransformRows& rows, std::size_t cols,
                                    std::uint32_t sign_mask, std::uint16_t* inexact,
                                    std::byte* amaxes) noexcept;

/// The micro-kernels of one type of items.
struct ItemKernels {
  RunAmaxFn amax;
  AddRowsFn add_rows;
  TransformFn transform;
};

}  // namespace narrowfloat::cpu
