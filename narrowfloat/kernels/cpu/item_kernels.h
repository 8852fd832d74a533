// SPDX-License-Identifier: Apache-2.0
// Micro-kernels of items that are not encoded: amaxes, sums of columns and the Hadamard transform.
// They know no tensor; the drivers in tile_drivers.cc call them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/numerics/hadamard.h"

namespace narrowfloat::cpu {

/// The columns of a call are a multiple of this: the most items of 16 bits that a vector holds.
inline constexpr std::size_t kColumnUnit = 32;
/// Most columns of one call that transforms.
inline constexpr std::size_t kTransformCols = 1024;

/// Returns the largest magnitude of `count` adjacent items, NaN ignored; 0 if `count` is 0.
/// {-2, NaN, 1}: 2.
using RunAmaxFn = float (*)(const std::byte* items, std::size_t count) noexcept;

/// Adds `count` rows of `cols` items to the fp32 sums of their columns, in the order of the rows.
/// If `amax` is not null, sets it to the largest magnitude of all items, NaN if one is NaN.
/// Requires: cols is a multiple of kColumnUnit. Rows {1, 2, ...} and {4, 8, ...} added to sums
/// {0.5, 0, ...}: {5.5, 10, ...}.
using AddRowsFn = void (*)(const std::byte* const* rows, std::size_t count, std::size_t cols,
                           float* sums, float* amax) noexcept;

/// Addresses of the rows of a group: its items, the items that are prefetched meanwhile, and its
/// transform.
struct TransformRows {
  std::array<const std::byte*, kHadamardSize> in, next;
  std::array<std::byte*, kHadamardSize> out;
};
/// Writes the random Hadamard transform of `cols` columns of a group, rounded once, and the amaxes
/// of its columns, as patterns of the items' type. Returns the number of columns that it leaves to
/// the caller, because a sum may be inexact, an output is not finite or, of bfloat16, neither zero
/// nor a normal number, and stores their indices: their outputs and amaxes do not count.
/// Requires: cols is a multiple of kColumnUnit and at most kTransformCols, which is the length of
/// `inexact` and `amaxes`.
using TransformFn = std::size_t (*)(const TransformRows& rows, std::size_t cols,
                                    std::uint32_t sign_mask, std::uint16_t* inexact,
                                    std::byte* amaxes) noexcept;

/// The micro-kernels of one type of items.
struct ItemKernels {
  std::size_t item_bytes;
  RunAmaxFn amax;
  AddRowsFn add_rows;
  TransformFn transform;
};

}  // namespace narrowfloat::cpu
