// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "narrowfloat/numerics/host_device.h"

namespace narrowfloat {

using PhiloxWords = std::array<std::uint32_t, 4>;

// Philox4x32 with 10 rounds. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011.
inline constexpr int kPhiloxRounds = 10;
inline constexpr std::array<std::uint32_t, 2> kPhiloxFactors{0xD2511F53u, 0xCD9E8D57u};

/// The two words of the key; every round changes them.
struct PhiloxKey {
  std::uint32_t low, high;

  NF_HD explicit constexpr PhiloxKey(std::uint64_t key) noexcept
      : low(static_cast<std::uint32_t>(key)), high(static_cast<std::uint32_t>(key >> 32)) {}
  NF_HD constexpr void Next() noexcept {
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
};

/// Returns four random words for a counter and a key.
NF_HD constexpr PhiloxWords Philox4x32(PhiloxWords counter, std::uint64_t key) noexcept {
  PhiloxKey words(key);
  for (int round = 0; round < kPhiloxRounds; ++round, words.Next()) {
    const std::uint64_t a = std::uint64_t{kPhiloxFactors[0]} * counter[0];
    const std::uint64_t b = std::uint64_t{kPhiloxFactors[1]} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ words.low,
               static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ words.high,
               static_cast<std::uint32_t>(a)};
  }
  return counter;
}

}  // namespace narrowfloat
