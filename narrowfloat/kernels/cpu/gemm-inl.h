// SPDX-License-Identifier: Apache-2.0
// Defines the geometry of panels for packing and micro-kernels. Compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/gemm_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

using GemmHalf = hn::Half<DF>;  // as many floats as there are doubles in a vector

// Lines of a panel of fp32 values. The sums of a micro-tile and one position of `b` fill the
// registers of x86: 32 on AVX-512, 16 without it.
inline constexpr std::size_t kFloatVectors = 2;
inline constexpr std::size_t kFloatCols = kFloatVectors * hn::MaxLanes(DF());
#if HWY_TARGET <= HWY_AVX3
inline constexpr std::size_t kFloatRows = 12;
#elif HWY_TARGET <= HWY_AVX2
inline constexpr std::size_t kFloatRows = 6;
#else
inline constexpr std::size_t kFloatRows = 4;
#endif

/// Returns the lower half of fp32 numbers as doubles, or the upper half if k is 1.
HWY_INLINE hn::Vec<DD> WidenHalf(hn::Vec<DF> floats, std::size_t k) {
  const GemmHalf half;
  if (k == 0) return hn::PromoteTo(DD(), hn::LowerHalf(half, floats));
  return hn::PromoteTo(DD(), hn::UpperHalf(half, floats));
}
/// Returns the doubles half_of(0), the lower half, and half_of(1), the upper half, as fp32.
template <class HalfOf>
HWY_INLINE hn::Vec<DF> RoundHalves(const HalfOf& half_of) {
  const GemmHalf half;
  const auto lower = hn::DemoteTo(half, half_of(0));
  return hn::Combine(DF(), hn::DemoteTo(half, half_of(1)), lower);
}

/// Loads fp32 numbers that are stored as doubles.
HWY_INLINE hn::Vec<DF> LoadAsFloats(const double* from) {
  return RoundHalves([from](std::size_t k)
                         NF_INLINE_ATTR { return hn::LoadU(DD(), from + k * hn::Lanes(DD())); });
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
