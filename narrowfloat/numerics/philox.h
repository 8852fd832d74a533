// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "narrowfloat/numerics/host_device.h"

namespace narrowfloat {

using PhiloxWords = std::array<std::uint32_t, 4>;

/// Philox4x32 with 10 rounds: four random words for a counter and a key.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
NF_HD constexpr PhiloxWords Philox4x32(PhiloxWords counter, std::uint64_t key) noexcept {
  auto low = static_cast<std::uint32_t>(key);
  auto high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ low, static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ high, static_cast<std::uint32_t>(a)};
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace narrowfloat
