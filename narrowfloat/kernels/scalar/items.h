// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/exact_sum.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat {

/// Returns item `index` of a row as fp32; exact for FloatTypes. Rows need no alignment.
template <class T>
NF_HD inline float LoadItem(const std::byte* row, std::size_t index) {
  if constexpr (kItemSize<T> == 4) {
    float value;
    std::memcpy(&value, row + index * 4, 4);
    return value;
  } else {
    std::uint16_t code;
    std::memcpy(&code, row + index * 2, 2);
    return Decode<T>(code);
  }
}

/// Rounds to T, nearest-even, overflow to infinity, every NaN to the one quiet NaN.
template <class T>
NF_HD inline void StoreItem(std::byte* row, std::size_t index, float value) {
  if constexpr (kItemSize<T> == 4) {
    value = CanonicalNan(value);
    std::memcpy(row + index * 4, &value, 4);
  } else {
    const auto code = static_cast<std::uint16_t>(Encode<T, Overflow::kInfinity>(value));
    std::memcpy(row + index * 2, &code, 2);
  }
}

/// Rounds to T once. Requires: `value` is rounded to odd in binary64.
template <class T>
inline void StoreOnce(std::byte* row, std::size_t index, double value) {
  StoreItem<T>(row, index, kItemSize<T> == 4 ? static_cast<float>(value) : RoundToOdd(value));
}

/// Returns make<T>() for the type T of FloatTypes with that `dtype`. Requires: make has no state.
template <class Make>
inline auto ForType(DType dtype, Make) {
  static constexpr auto kMade = ArrayOf(FloatTypes{}, Make{});
  return kMade[static_cast<std::size_t>(dtype)];
}

/// Returns the magnitude of a value: clears the sign bit.
NF_HD inline float Magnitude(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & ~kFloatSign);
}

}  // namespace narrowfloat
