// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "narrowfloat/types/quantized_tensor_storage.h"

namespace narrowfloat {

/// Returns values of both signs in 8 binades, which depend on the seed. Requires: not float16.
inline OwnedTensor MakeInput(const Shape& shape, DType dtype = DType::kFloat32,
                             std::uint32_t seed = 1) {
  OwnedTensor tensor(dtype, shape);
  std::uint32_t state = seed;
  for (std::size_t i = 0; i < tensor.Bytes() / ItemSize(dtype); ++i) {
    state = state * 1664525u + 1013904223u;
    // A sign, an exponent from -4 to 3, and random mantissa bits. The upper half is a bfloat16.
    const std::uint32_t bits =
        (state & 0x80000000u) | ((123u + (state >> 28 & 7u)) << 23) | (state >> 5 & 0x7fffffu);
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    std::byte* item = tensor.data() + i * ItemSize(dtype);
    if (dtype == DType::kFloat32) {
      std::memcpy(item, &bits, sizeof bits);
    } else {
      std::memcpy(item, &upper, sizeof upper);
    }
  }
  return tensor;
}

inline bool SameBytes(const ConstTensorView& a, const ConstTensorView& b) {
  if ((a.data == nullptr) != (b.data == nullptr) || a.dtype != b.dtype || a.shape != b.shape) {
    return false;
  }
  if (a.data == nullptr) return true;
  return std::memcmp(a.data, b.data, FlattenShape(a.shape).Size() * ItemSize(a.dtype)) == 0;
}

inline void ExpectSameBuffers(const ConstQuantizedView& got, const ConstQuantizedView& expected) {
  EXPECT_EQ(PrintQuantSpec(got.spec), PrintQuantSpec(expected.spec));
  EXPECT_EQ(got.shape, expected.shape);
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    EXPECT_TRUE(SameBytes(got.buffers[i], expected.buffers[i])) << RoleName(static_cast<Role>(i));
  }
}

}  // namespace narrowfloat
