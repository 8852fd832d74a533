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

using GemmF = DF;
using GemmD = hn::Repartition<double, GemmF>;

// Lines of a panel of fp32 values. The sums of a micro-tile and one position of `b` fill the
// registers: 32 of them on AVX-512, 16 before.
inline constexpr std::size_t kFloatVectors = 2;
inline constexpr std::size_t kFloatCols = kFloatVectors * hn::MaxLanes(GemmF());
#if HWY_TARGET <= HWY_AVX3
inline constexpr std::size_t kFloatRows = 12;
#elif HWY_TARGET <= HWY_AVX2
inline constexpr std::size_t kFloatRows = 6;
#else
inline constexpr std::size_t kFloatRows = 4;
#endif

/// Loads fp32 numbers that are stored as doubles.
HWY_INLINE hn::Vec<GemmF> LoadAsFloats(const double* from) {
  const GemmF df;
  const GemmD dd;
  const hn::Half<GemmF> half;
  return hn::Combine(df, hn::DemoteTo(half, hn::LoadU(dd, from + hn::Lanes(dd))),
                     hn::DemoteTo(half, hn::LoadU(dd, from)));
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
