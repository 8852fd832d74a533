// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/host_device.h"

namespace narrowfloat {

/// OCP E8M0: an exponent with bias 127 and nothing else. Code c is 2^(c-127); 0xFF is NaN; there is
/// no zero. It has no sign and no mantissa, so it is not a FloatFormat and has three separate
/// functions.
struct E8M0 {
  static constexpr std::uint32_t kMaxCode = 0xFE, kNanCode = 0xFF;
  static constexpr std::uint32_t kSmallestPowerBits = 0x00400000u;  // 2^-127, subnormal in binary32
};

/// Returns the code of the smallest power of two >= `x`, saturating to [2^-127, 2^127].
/// Special values: NaN, and any number with a sign, -0 too, give 0xFF.
/// Worked example: 1 -> 0x7F; the next float above 1 -> 0x80; 2^-127 -> 0x00; the next float above
/// that -> 0x01. Source: PTX cvt.rp.satfinite.ue8m0x2.f32, which TransformerEngine uses for MXFP8
/// scales.
NF_HD constexpr std::uint32_t EncodeE8M0Up(float x) noexcept {
  constexpr std::uint32_t kLargestMantissa = 0x7FFFFFu;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // Adding the largest mantissa carries into the exponent unless the mantissa is zero. The bit
  // patterns from 1 to 0x00400000 (2^-127) carry too, but their code is 0: subtracts 1. Only
  // additions, no selects: g++ then vectorizes the loops over blocks.
  const auto up_to_smallest = static_cast<std::uint32_t>(bits - 1u < E8M0::kSmallestPowerBits);
  const std::uint32_t code = ((bits + kLargestMantissa) >> 23) - up_to_smallest;
  const std::uint32_t saturated = code < E8M0::kMaxCode ? code : E8M0::kMaxCode;
  return bits > kFloatInfinity ? E8M0::kNanCode : saturated;
}

/// Returns 2^(code-127); NaN for 0xFF.
NF_HD constexpr float DecodeE8M0(std::uint32_t code) noexcept {
  const std::uint32_t power = code == 0 ? E8M0::kSmallestPowerBits : code << 23;
  return std::bit_cast<float>(code == E8M0::kNanCode ? std::uint32_t{kFloatNan} : power);
}

/// Returns 2^(127-code), exact even for 0xFE, where it is subnormal; NaN for 0xFF.
NF_HD constexpr float DecodeE8M0Reciprocal(std::uint32_t code) noexcept {
  const std::uint32_t power =
      code == E8M0::kMaxCode ? E8M0::kSmallestPowerBits : (E8M0::kMaxCode - code) << 23;
  return std::bit_cast<float>(code == E8M0::kNanCode ? std::uint32_t{kFloatNan} : power);
}

}  // namespace narrowfloat
