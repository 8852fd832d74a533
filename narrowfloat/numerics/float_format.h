// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace narrowfloat {

/// A float of at most 16 bits, described by constants only: a sign, exponent bits, mantissa bits,
/// subnormals. kMaxCode is the code of the largest finite magnitude; with kHasInfinity the next
/// code is infinity. kNanCode is the code that Encode returns for every NaN; in a format without
/// NaN it equals kMaxCode.
template <class F>
concept FloatFormat = requires {
  { F::kExponentBits } -> std::convertible_to<int>;
  { F::kMantissaBits } -> std::convertible_to<int>;
  { F::kBias } -> std::convertible_to<int>;
  { F::kMaxCode } -> std::convertible_to<std::uint32_t>;
  { F::kNanCode } -> std::convertible_to<std::uint32_t>;
  { F::kHasInfinity } -> std::convertible_to<bool>;
};

template <FloatFormat F>
inline constexpr int kBits = 1 + F::kExponentBits + F::kMantissaBits;

/// Returns the number of codes of `bits` bits in a byte. The first one is in the lowest bits.
/// Requires: 8 is a multiple of `bits`, so that no code spans two bytes.
constexpr std::size_t CodesPerByte(int bits) {
  return static_cast<std::size_t>(8 / bits);
}

/// Returns the bytes of `codes` adjacent codes. Requires: the codes fill whole bytes.
constexpr std::size_t CodeBytes(int bits, std::size_t codes) {
  return codes / CodesPerByte(bits);
}

/// The code of -0: the sign bit alone.
template <FloatFormat F>
inline constexpr std::uint32_t kSignCode = 1u << (F::kExponentBits + F::kMantissaBits);

}  // namespace narrowfloat
