// SPDX-License-Identifier: Apache-2.0
// Computes GELU of vectors: the operations of numerics/gelu.h, in its order. Compiled once per
// instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_GELU_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_GELU_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_GELU_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_GELU_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/gemm-inl.h"
#include "narrowfloat/numerics/gelu.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using GemmHalf = hn::Half<GemmF>;  // as many floats as there are doubles in a vector
using Doubles = hn::Vec<GemmD>;

/// Computes PowerOfTwo of numerics/gelu.h, lane by lane.
HWY_INLINE Doubles PowersOfTwo(Doubles x) {
  const GemmD dd;
  const hn::RebindToUnsigned<GemmD> du;
  const auto rounder = hn::Set(dd, kPowerRounder);
  const auto whole = hn::Add(x, rounder);
  const auto rest = hn::Sub(x, hn::Sub(whole, rounder));
  auto sum = hn::Set(dd, kPowerSeries[kPowerTerms - 1]);
  for (std::size_t k = kPowerTerms - 1; k > 0; --k)
    sum = hn::Add(hn::Mul(sum, rest), hn::Set(dd, kPowerSeries[k - 1]));
  return hn::Mul(sum, hn::BitCast(dd, hn::ShiftLeft<52>(hn::BitCast(du, whole))));
}

/// Computes GeluPower of numerics/gelu.h, lane by lane.
HWY_INLINE Doubles GeluPowers(Doubles x, Doubles square, double most) {
  const GemmD dd;
  const auto inner = hn::Add(hn::Set(dd, kGeluLinear), hn::Mul(hn::Set(dd, kGeluCubic), square));
  const auto power = hn::Mul(hn::Mul(x, inner), hn::Set(dd, kGeluMinusLog2E));
  return PowersOfTwo(hn::Min(hn::Max(power, hn::Set(dd, kGeluLeastPower)), hn::Set(dd, most)));
}

HWY_INLINE Doubles GeluOf(Doubles x) {
  const auto power = GeluPowers(x, hn::Mul(x, x), kGeluMostPower);
  return hn::Div(x, hn::Add(hn::Set(GemmD(), 1.0), power));
}

HWY_INLINE Doubles GeluGradient(Doubles x) {
  const GemmD dd;
  const auto one = hn::Set(dd, 1.0), square = hn::Mul(x, x);
  const auto power = GeluPowers(x, square, kGeluGradientMostPower);
  const auto sigmoid = hn::Div(one, hn::Add(one, power));
  const auto slope =
      hn::Add(hn::Set(dd, kGeluLinear), hn::Mul(hn::Set(dd, kGeluCubicSlope), square));
  const auto rise = hn::Mul(hn::Mul(x, hn::Mul(hn::Mul(power, sigmoid), sigmoid)), slope);
  return hn::Add(hn::Add(sigmoid, rise), hn::Sub(x, x));
}

/// Computes Gelu of numerics/gelu.h, lane by lane.
HWY_INLINE hn::Vec<GemmF> Gelus(hn::Vec<GemmF> x) {
  const GemmF df;
  const GemmD dd;
  const GemmHalf half;
  const auto low = GeluOf(hn::PromoteTo(dd, hn::LowerHalf(half, x)));
  const auto high = GeluOf(hn::PromoteTo(dd, hn::UpperHalf(half, x)));
  return hn::Combine(df, hn::DemoteTo(half, high), hn::DemoteTo(half, low));
}

/// Computes TimesGeluGradient of numerics/gelu.h, lane by lane.
HWY_INLINE hn::Vec<GemmF> TimesGeluGradients(hn::Vec<GemmF> factors, hn::Vec<GemmF> x) {
  const GemmF df;
  const GemmD dd;
  const GemmHalf half;
  const auto times = [&](hn::Vec<GemmHalf> factor, hn::Vec<GemmHalf> at) NF_INLINE_ATTR {
    return hn::DemoteTo(half,
                        hn::Mul(hn::PromoteTo(dd, factor), GeluGradient(hn::PromoteTo(dd, at))));
  };
  return hn::Combine(df, times(hn::UpperHalf(half, factors), hn::UpperHalf(half, x)),
                     times(hn::LowerHalf(half, factors), hn::LowerHalf(half, x)));
}

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
