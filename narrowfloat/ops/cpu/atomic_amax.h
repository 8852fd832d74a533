// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace narrowfloat {

/// The largest magnitude that any thread has found, 0 at first. Compares bit patterns: they have
/// the order of the magnitudes, also under flush-to-zero.
class AtomicAmax {
 public:
  void Update(float magnitude) {
    const auto bits = std::bit_cast<std::uint32_t>(magnitude);
    std::uint32_t largest = bits_.load(std::memory_order_relaxed);
    while (bits > largest &&
           !bits_.compare_exchange_weak(largest, bits, std::memory_order_relaxed)) {
    }
  }
  float Get() const { return std::bit_cast<float>(bits_.load()); }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

}  // namespace narrowfloat
