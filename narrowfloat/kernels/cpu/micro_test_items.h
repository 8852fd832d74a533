// SPDX-License-Identifier: Apache-2.0
// Items and instruction sets for the tests of micro-kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/kernels/cpu/tables.h"
#include "narrowfloat/kernels/scalar/items.h"

namespace narrowfloat::cpu {

/// One type of items, whose values are given as patterns of bits.
template <class T>
struct ItemType {
  using Item = T;
  static constexpr std::size_t kBytes = kItemSize<T>;
  static constexpr std::uint32_t kSign = 1u << (kBytes * 8 - 1);
  static constexpr std::uint32_t kInfinity = [] {
    if constexpr (kBytes == 4) return kFloatInfinity;
    if constexpr (kBytes == 2) return T::kMaxCode + 1u;
  }();
  // Number of patterns in a binade, and the pattern of the number 1.
  static constexpr std::uint32_t kBinade = [] {
    if constexpr (kBytes == 4) return 1u << 23;
    if constexpr (kBytes == 2) return 1u << T::kMantissaBits;
  }();
  static constexpr std::uint32_t kOne = kInfinity / 2 / kBinade * kBinade;

  static float Value(std::uint32_t pattern) {
    return LoadItem<T>(reinterpret_cast<const std::byte*>(&pattern), 0);  // little-endian
  }
  /// Returns every pattern of 16 bits; for fp32 every sign and exponent, with mantissas that are
  /// ties of a mantissa of 3 bits (E4M3's), or beside such ties.
  static std::vector<std::uint32_t> Patterns() {
    std::vector<std::uint32_t> patterns;
    if constexpr (kBytes == 2) {
      for (std::uint32_t p = 0; p < 1u << 16; ++p) patterns.push_back(p);
    } else {
      for (std::uint32_t top = 0; top < 1u << 13; ++top) {
        for (const std::uint32_t low : {0u, 1u, (1u << 19) - 1u})
          patterns.push_back((top << 19) + low);
      }
    }
    return patterns;
  }
};

/// One format of codes and one type of items.
template <class F, class T>
struct FormatAndItems : ItemType<T> {
  using Format = F;
  static constexpr std::size_t kFormat = IndexIn<F>(ElementFormats{});
};

/// A buffer of items or amaxes, aligned to cache lines.
struct Items {
  explicit Items(std::size_t count, std::size_t item_bytes)
      : bytes(item_bytes), memory((count * item_bytes + 63) / 64 + 1) {}
  std::byte* At(std::size_t i) { return reinterpret_cast<std::byte*>(memory.data()) + i * bytes; }
  void Set(std::size_t i, std::uint32_t pattern) { std::memcpy(At(i), &pattern, bytes); }
  std::uint32_t Get(std::size_t i) {
    std::uint32_t pattern = 0;
    std::memcpy(&pattern, At(i), bytes);
    return pattern;
  }
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::size_t bytes;
  std::vector<Line> memory;
};

using Target = CpuTarget;
inline std::vector<Target> Targets() {
  return AvailableTargets();
}

/// Returns the micro-kernels of FormatAndItems.
template <class P>
const FormatKernels& KernelsOf(const Target& target) {
  return target.parts.micro
      ->formats[P::kFormat][static_cast<std::size_t>(kDTypeOf<typename P::Item>)];
}

/// Returns the larger of `amax` and the magnitude of `item`. Ignores NaN.
template <class P>
std::uint32_t Larger(std::uint32_t amax, std::uint32_t item) {
  const std::uint32_t magnitude = item & ~P::kSign;
  return magnitude > P::kInfinity ? amax : std::max(amax, magnitude);
}

}  // namespace narrowfloat::cpu
