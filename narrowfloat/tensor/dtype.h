// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/numerics/scale.h"
#include "narrowfloat/numerics/type_list.h"

namespace narrowfloat {

/// Type of a buffer's items. Codes, packed codes and 8-bit scales are kUInt8.
enum class DType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kUInt8 };

/// Types of inputs and of dequantized values, in the order of DType's first values.
using FloatTypes = TypeList<float, Float16, BFloat16>;
inline constexpr std::size_t kFloatTypeCount = FloatTypes::kSize;

constexpr bool IsFloat(DType dtype) {
  return static_cast<std::size_t>(dtype) < kFloatTypeCount;
}

constexpr std::size_t ItemSize(DType dtype) {
  constexpr std::size_t kSizes[] = {4, 2, 2, 1};
  return kSizes[static_cast<std::size_t>(dtype)];
}

/// Returns the largest finite number of a float type.
constexpr float LargestFinite(DType dtype) {
  constexpr float kLargest[] = {kLargestFloat, kMaxValue<Float16>, kMaxValue<BFloat16>};
  return kLargest[static_cast<std::size_t>(dtype)];
}

/// Returns the type's name in NumPy and ml_dtypes.
constexpr std::string_view DTypeName(DType dtype) {
  constexpr std::string_view kNames[] = {"float32", "float16", "bfloat16", "uint8"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// Bytes of one item of a FloatTypes member.
template <class T>
inline constexpr std::size_t kItemSize = 2;
template <>
inline constexpr std::size_t kItemSize<float> = 4;

/// The DType of a FloatTypes member.
template <class T>
inline constexpr DType kDTypeOf = DType::kFloat32;
template <>
inline constexpr DType kDTypeOf<Float16> = DType::kFloat16;
template <>
inline constexpr DType kDTypeOf<BFloat16> = DType::kBFloat16;

}  // namespace narrowfloat
