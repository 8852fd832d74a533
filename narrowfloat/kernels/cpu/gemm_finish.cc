// SPDX-License-Identifier: Apache-2.0
// Computes items of the result from the sums of a micro-tile: scales of whole lines, bias, GELU,
// accumulation and rounding, a vector of columns at a time.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include <cstring>

#include "narrowfloat/kernels/gemm_finish.h"

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode-inl.h"
#include "narrowfloat/kernels/cpu/gemm-inl.h"
#include "narrowfloat/numerics/gelu.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

constexpr std::size_t kLanes = hn::MaxLanes(DF());

// GELU: the operations of numerics/gelu.h, in the same order.
using Doubles = hn::Vec<DD>;

/// Computes Exp2 of numerics/gelu.h, lane by lane.
HWY_INLINE Doubles PowersOfTwo(Doubles x) {
  const DD dd;
  const hn::RebindToUnsigned<DD> du;
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
  const DD dd;
  const auto inner = hn::Add(hn::Set(dd, kGeluLinear), hn::Mul(hn::Set(dd, kGeluCubic), square));
  const auto power = hn::Mul(hn::Mul(x, inner), hn::Set(dd, kGeluMinusLog2E));
  return PowersOfTwo(hn::Min(hn::Max(power, hn::Set(dd, kGeluLeastPower)), hn::Set(dd, most)));
}

HWY_INLINE Doubles GeluOf(Doubles x) {
  const auto power = GeluPowers(x, hn::Mul(x, x), kGeluMostPower);
  return hn::Div(x, hn::Add(hn::Set(DD(), 1.0), power));
}

HWY_INLINE Doubles GeluGradient(Doubles x) {
  const DD dd;
  const auto one = hn::Set(dd, 1.0), square = hn::Mul(x, x);
  const auto power = GeluPowers(x, square, kGeluGradientMostPower);
  const auto sigmoid = hn::Div(one, hn::Add(one, power));
  const auto slope =
      hn::Add(hn::Set(dd, kGeluLinear), hn::Mul(hn::Set(dd, kGeluCubicSlope), square));
  const auto rise = hn::Mul(hn::Mul(x, hn::Mul(hn::Mul(power, sigmoid), sigmoid)), slope);
  return hn::Add(hn::Add(sigmoid, rise), hn::Sub(x, x));
}

/// Computes Gelu of numerics/gelu.h, lane by lane.
HWY_INLINE hn::Vec<DF> Gelus(hn::Vec<DF> x) {
  return RoundHalves([&](std::size_t k) NF_INLINE_ATTR { return GeluOf(WidenHalf(x, k)); });
}

/// Computes TimesGeluGradient of numerics/gelu.h, lane by lane.
HWY_INLINE hn::Vec<DF> TimesGeluGradients(hn::Vec<DF> factors, hn::Vec<DF> x) {
  return RoundHalves([&](std::size_t k) NF_INLINE_ATTR {
    return hn::Mul(WidenHalf(factors, k), GeluGradient(WidenHalf(x, k)));
  });
}

/// Returns the sums of the columns from `col` on, as fp32.
HWY_INLINE hn::Vec<DF> LoadSums(const FinishArgs& args, std::size_t row, std::size_t col) {
  const DF df;
  const DD dd;
  const std::size_t at = row * args.sums_stride + col;
  if (args.type == SumType::kBinary64) {
    return LoadAsFloats(static_cast<const double*>(args.sums) + at);
  }
  const auto sums = hn::LoadU(df, static_cast<const float*>(args.sums) + at);
  if (args.type == SumType::kFloat) return sums;
  return RoundHalves([&](std::size_t k) NF_INLINE_ATTR {
    const double* b_scales = args.b_scales + col + k * hn::Lanes(dd);
    const auto scale = hn::Mul(hn::Set(dd, args.a_scales[row]), hn::LoadU(dd, b_scales));
    // The sum over one slab begins with +0, as with more slabs: a product of -0 gives +0.
    return hn::Add(hn::Zero(dd), hn::Mul(WidenHalf(sums, k), scale));
  });
}

/// Returns sum + term. Rounds the sum to T first if `rounding` is kBeforeTerm.
template <class T>
HWY_INLINE hn::Vec<DF> AddTerm(hn::Vec<DF> sum, hn::Vec<DF> term, TermRounding rounding) {
  if (kItemSize<T> != 4 && rounding == TermRounding::kBeforeTerm) {
    alignas(64) std::byte items[kLanes * kItemSize<T>];
    StoreFloats<T>(sum, items);
    sum = LoadFloats<T>(items);
  }
  return hn::Add(sum, term);
}

/// Addresses of a vector of items of the result, of their biases and of the function's points.
struct ItemPointers {
  const float* bias;  // or null
  std::byte* points;  // or null
  std::byte* out;
};

template <class T>
HWY_INLINE hn::Vec<DF> Apply(SumFunction function, hn::Vec<DF> sum, std::byte* points) {
  if (function == SumFunction::kTimesGeluGradient) {
    return TimesGeluGradients(sum, LoadFloats<T>(points));
  }
  if (points != nullptr) StoreFloats<T>(sum, points);
  return Gelus(sum);
}

/// Writes one vector of items: adds the bias, applies the function, accumulates and rounds.
template <class T>
HWY_INLINE void FinishVector(const FinishArgs& args, hn::Vec<DF> sum, const ItemPointers& places) {
  if (places.bias != nullptr) sum = AddTerm<T>(sum, hn::LoadU(DF(), places.bias), args.rule.bias);
  if (args.step.function != SumFunction::kNone) {
    sum = Apply<T>(args.step.function, sum, places.points);
  }
  if (args.accumulates) sum = AddTerm<T>(sum, LoadFloats<T>(places.out), args.rule.accumulate);
  StoreFloats<T>(sum, places.out);
}

/// Writes the last `count` items of a row, which do not fill a vector.
template <class T>
void FinishRest(const FinishArgs& args, hn::Vec<DF> sum, const ItemPointers& places,
                std::size_t count) {
  alignas(64) float bias[kLanes] = {};
  alignas(64) std::byte points[kLanes * kItemSize<T>] = {}, items[kLanes * kItemSize<T>] = {};
  const std::size_t bytes = count * kItemSize<T>;
  const bool has_bias = places.bias != nullptr, has_points = places.points != nullptr;
  std::memcpy(items, places.out, bytes);
  if (has_bias) std::memcpy(bias, places.bias, count * sizeof(float));
  if (has_points) std::memcpy(points, places.points, bytes);
  FinishVector<T>(args, sum, {has_bias ? bias : nullptr, has_points ? points : nullptr, items});
  std::memcpy(places.out, items, bytes);
  if (has_points && args.step.function == SumFunction::kGelu)
    std::memcpy(places.points, points, bytes);
}

template <class T>
void FinishTile(const FinishArgs& args) noexcept {
  const std::size_t cols = args.tile.col_end - args.tile.col_begin;
  for (std::size_t row = 0; row < args.tile.row_end - args.tile.row_begin; ++row) {
    const auto places = [&](std::size_t col) NF_INLINE_ATTR {
      const std::size_t at = (args.tile.col_begin + col) * kItemSize<T>;
      const MatrixRows<std::byte>& points = args.step.points;
      return ItemPointers{
          args.bias == nullptr ? nullptr : args.bias + col,
          points.data == nullptr ? nullptr : points.Row(args.tile.row_begin + row) + at,
          args.out.Row(args.tile.row_begin + row) + at};
    };
    std::size_t col = 0;
    for (; col + kLanes <= cols; col += kLanes)
      FinishVector<T>(args, LoadSums(args, row, col), places(col));
    if (col < cols) FinishRest<T>(args, LoadSums(args, row, col), places(col), cols - col);
  }
}

}  // namespace

ByType<FinishFn> GemmFinishTable() {
  return ArrayOf(FloatTypes{}, []<class T>() { return FinishFn{&FinishTile<T>}; });
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
