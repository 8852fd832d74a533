// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "narrowfloat/io/foreign_weight.h"

namespace narrowfloat::io {

/// Returns the value of each code; for packed codes, of the low half of each byte.
std::array<float, 256> ValuesOfCodes(FileDType codes);

/// Returns scale `i` of a file's tensor. Requires: a float type, E8M0 (or U8) or E4M3.
float ScaleValue(FileDType dtype, std::span<const std::byte> bytes, std::size_t i);

/// Writes the values of a weight: code times scale, rounded to `dtype` (nearest-even, overflow to
/// infinity). CombineScales computes the scale. Requires: sizes as described.
void DecodeWeight(const ForeignWeight& weight, const ForeignBytes& in, DType dtype,
                  std::span<std::byte> out, int threads);

}  // namespace narrowfloat::io
