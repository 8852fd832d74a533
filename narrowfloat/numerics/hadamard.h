// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "narrowfloat/numerics/host_device.h"

namespace narrowfloat {

inline constexpr std::size_t kHadamardSize = 16;

/// Signs of the random Hadamard transform that training uses: bit k set negates input k.
/// Source: TransformerEngine pytorch/tensor/nvfp4_tensor.py, get_rht_matrix.
inline constexpr std::uint32_t kHadamardSignMask = 0xD7E8;

/// The transform's factor, 1 / sqrt(16).
inline constexpr double kHadamardScale = 0.25;

/// Returns true if input k is negated in output j. Sylvester's matrix holds -1 where k & j has an
/// odd number of bits set.
NF_HD constexpr bool HadamardNegates(std::size_t k, std::size_t j,
                                     std::uint32_t sign_mask) noexcept {
  // 32 bits wide: nvcc 13.0 compiles a 64-bit std::popcount to a constant, without a warning.
  const int common = std::popcount(static_cast<std::uint32_t>(k & j));
  return ((common + static_cast<int>(sign_mask >> k & 1u)) & 1) != 0;
}

}  // namespace narrowfloat
