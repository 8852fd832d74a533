// SPDX-License-Identifier: Apache-2.0
// Vector code that all CPU kernels share: loading, magnitudes, encoding. Compiled once per
// instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_LANES_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_LANES_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_LANES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/numerics/codec.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR  // there the oracle's table serves
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// An item of T as an integer of its width, and the pattern of infinity in it.
template <class T>
using BitsOf = std::conditional_t<kItemSize<T> == 4, std::uint32_t, std::uint16_t>;
template <class T>
inline constexpr std::uint32_t kInfinityBits = T::kMaxCode + 1u;
template <>
inline constexpr std::uint32_t kInfinityBits<float> = kFloatInfinity;

/// Value of the magnitude pattern of an item.
template <class T>
HWY_INLINE float MagnitudeValue(std::uint32_t bits) {
  if constexpr (kItemSize<T> == 4) {
    return std::bit_cast<float>(bits);
  } else {
    return Decode<T>(bits);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> LoadItems(D d, const std::byte* at) {
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(at));
}

/// Magnitude patterns of items, as signed integers (which order as the values do), NaN replaced by
/// 0. 3 ops.
template <class T, class DI>
HWY_INLINE hn::Vec<DI> NumberMagnitudes(DI di, hn::Vec<DI> items) {
  using I = hn::TFromD<DI>;
  constexpr auto kMagnitude = static_cast<I>(~(I{1} << (sizeof(I) * 8 - 1)));
  const auto magnitude = hn::And(items, hn::Set(di, kMagnitude));
  const auto is_nan = hn::Gt(magnitude, hn::Set(di, static_cast<I>(kInfinityBits<T>)));
  return hn::IfThenZeroElse(is_nan, magnitude);
}

/// Values of the even and of the odd 16-bit lanes, given as magnitude patterns. NaN may become
/// infinity: callers replace such lanes. bfloat16: 1 op each. float16: 5 ops; the product with
/// 2^112 moves the exponent over and makes subnormals normal.
template <class T, class D32>
HWY_INLINE hn::Vec<hn::RebindToFloat<D32>> WidenMagnitudes(D32 d32, hn::Vec<D32> low_halves) {
  const hn::RebindToFloat<D32> df;
  if constexpr (std::is_same_v<T, BFloat16>) {
    return hn::BitCast(df, hn::ShiftLeft<16>(low_halves));
  } else {
    constexpr float kRebias = 0x1p112f;
    const auto moved = hn::BitCast(df, hn::ShiftLeft<13>(low_halves));
    const hn::RebindToSigned<D32> di;
    const auto beyond =
        hn::Gt(hn::BitCast(di, low_halves), hn::Set(di, static_cast<std::int32_t>(T::kMaxCode)));
    return hn::IfThenElse(hn::RebindMask(df, beyond), hn::BitCast(df, hn::Set(d32, kFloatInfinity)),
                          hn::Mul(moved, hn::Set(df, kRebias)));
  }
}
template <class T, class D32>
HWY_INLINE hn::Vec<hn::RebindToFloat<D32>> WidenEven(D32 d32, hn::Vec<D32> pairs) {
  if constexpr (std::is_same_v<T, BFloat16>) return WidenMagnitudes<T>(d32, pairs);
  return WidenMagnitudes<T>(d32, hn::And(pairs, hn::Set(d32, 0xFFFFu)));
}
template <class T, class D32>
HWY_INLINE hn::Vec<hn::RebindToFloat<D32>> WidenOdd(D32 d32, hn::Vec<D32> pairs) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return hn::BitCast(hn::RebindToFloat<D32>(), hn::And(pairs, hn::Set(d32, 0xFFFF0000u)));
  } else {
    return WidenMagnitudes<T>(d32, hn::ShiftRight<16>(pairs));
  }
}

/// A code's bits of a sum made by EncodeMagnitudes, shifted left by kShift, in the lower half of
/// each lane; what lies above is undefined. The sum's exponent field stands in its upper 16 bits
/// with zeros below it, the value's steps in the lower 16: code = steps + (exponent << M). On x86
/// one multiply-add of the two halves does that.
template <int kMantissa, int kShift, class D32>
HWY_INLINE hn::Vec<D32> CodeOfSum(D32 d32, hn::Vec<D32> sum) {
#if HWY_ARCH_X86
  const hn::RebindToSigned<D32> di;
  const hn::Repartition<std::int16_t, D32> d16;
  constexpr std::uint32_t kLow = 1u << kShift, kHigh = 1u << (kShift + kMantissa - 7 + 16);
  const auto factors = hn::BitCast(d16, hn::Set(d32, kHigh | kLow));
  auto unused = hn::Zero(di);
  return hn::BitCast(
      d32, hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, sum), factors, hn::Zero(di), unused));
#else
  return hn::ShiftLeft<kShift>(hn::Add(sum, hn::ShiftLeft<kMantissa>(hn::ShiftRight<23>(sum))));
#endif
}

/// Code of F nearest to `value` (not negative, not NaN), shifted left by kShift, in the lower half
/// of each lane; the upper half is undefined. `limit` is where larger values are cut off. 6 ops.
///
/// With b the power of two at or below the value, but not below F's smallest normal, the sum b *
/// 2^(23-M) + value has steps of exactly b * 2^-M, F's own: the addition rounds to nearest-even on
/// F's grid, subnormals included, and leaves value / (b * 2^-M) in its low bits. The exponent field
/// e of the sum, shifted onto F's exponent, supplies the rest; the part of both that does not
/// depend on the value is folded into the multiplier of b. Worked example, E4M3, 1.1875: b = 1,
/// steps of 1/8, 9.5 is a tie and becomes 10 (even): sum mantissa 10 + 152, e = 147; 162 + 8 * 147
/// = 1338 = 0x3A mod 256, which is 1.25. The multiplication is exact (b is a power of two), so
/// targets without FMA give the same bits.
template <FloatFormat F, int kShift, class DF>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> EncodeMagnitudes(DF df, hn::Vec<DF> value,
                                                              float limit) {
  constexpr int kMantissa = F::kMantissaBits;
  constexpr std::uint32_t kCodes = kSignCode<F>;
  constexpr std::uint32_t kField = 127u + 23u - kMantissa;  // exponent field of the sum for b = 1
  constexpr std::uint32_t kOffset =
      ((static_cast<std::uint32_t>(F::kBias - 1) - kField) << kMantissa) & (2 * kCodes - 1);
  static_assert((kOffset & ((1u << kMantissa) - 1u)) == 0);
  static_assert(kOffset + (2u << kMantissa) < 0x8000u);  // the steps are a positive 16-bit number
  constexpr float kMultiplier =
      static_cast<float>(1u << (23 - kMantissa)) + static_cast<float>(kOffset >> kMantissa);
  constexpr float kSmallestNormal =
      std::bit_cast<float>(static_cast<std::uint32_t>(128 - F::kBias) << 23);
  const hn::RebindToUnsigned<DF> du;
  const auto cut = hn::Min(value, hn::Set(df, limit));
  const auto exponent = hn::And(cut, hn::BitCast(df, hn::Set(du, kFloatInfinity)));
  const auto base = hn::Max(exponent, hn::Set(df, kSmallestNormal));
  const auto sum = hn::MulAdd(base, hn::Set(df, kMultiplier), cut);
  return CodeOfSum<kMantissa, kShift>(du, hn::BitCast(du, sum));
}

/// One scale for all lanes. Both kinds give the scale of sub-vector i, in the order EncodeRun asks
/// for.
template <class DF>
struct UniformScale {
  hn::Vec<DF> scale;
  HWY_INLINE hn::Vec<DF> operator()(std::size_t /*i*/) const { return scale; }
};
/// A scale for each lane, in the order that SplitMagnitudes gives lanes.
template <class DF>
struct LaneScales {
  const float* scales;
  HWY_INLINE hn::Vec<DF> operator()(std::size_t i) const {
    return hn::LoadU(DF(), scales + i * hn::Lanes(DF()));
  }
};

inline constexpr int kUpperByte = 8;

/// Codes of 16-bit items in the upper bytes of 16-bit lanes; the lower bytes are undefined. 22 ops.
template <FloatFormat F, class T, class D16, class V>
HWY_INLINE hn::Vec<D16> EncodeHalves(D16 d16, hn::Vec<D16> items, V scale_even, V scale_odd) {
  const hn::Repartition<std::uint32_t, D16> d32;
  const hn::Repartition<float, D16> df;
  const hn::RebindToSigned<D16> di;
  const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
  const auto sign = hn::Xor(items, magnitude);
  const auto is_nan = hn::RebindMask(
      d16,
      hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int16_t>(kInfinityBits<T>))));
  const auto pairs = hn::BitCast(d32, magnitude);
  const auto even = EncodeMagnitudes<F, kUpperByte>(
      df, hn::Mul(WidenEven<T>(d32, pairs), scale_even), kMaxValue<F>);
  const auto odd = EncodeMagnitudes<F, kUpperByte>(df, hn::Mul(WidenOdd<T>(d32, pairs), scale_odd),
                                                   kMaxValue<F>);
  const auto codes = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
  constexpr std::uint16_t kNan = static_cast<std::uint16_t>(F::kNanCode << kUpperByte);
  return hn::IfThenElse(is_nan, hn::Set(d16, kNan), hn::Or(codes, sign));
}

/// Codes of fp32 items in the second lowest bytes of 32-bit lanes; the others are undefined. 12
/// ops.
template <FloatFormat F, class D32, class V>
HWY_INLINE hn::Vec<D32> EncodeSingles(D32 d32, hn::Vec<D32> items, V scale) {
  const hn::RebindToFloat<D32> df;
  const hn::RebindToSigned<D32> di;
  const auto magnitude = hn::And(items, hn::Set(d32, ~kFloatSign));
  const auto sign = hn::ShiftRight<16>(hn::Xor(items, magnitude));
  const auto is_nan = hn::RebindMask(
      d32,
      hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int32_t>(kFloatInfinity))));
  const auto codes =
      EncodeMagnitudes<F, kUpperByte>(df, hn::Mul(hn::BitCast(df, magnitude), scale), kMaxValue<F>);
  return hn::IfThenElse(is_nan, hn::Set(d32, F::kNanCode << kUpperByte), hn::Or(codes, sign));
}

/// Codes of Lanes(d8) items of T at `in`, scaled by positive finite scales.
/// An item times such a scale is NaN only where the item is, so that NaN can be told from the items
/// alone.
template <FloatFormat F, class T, class D8, class Scale>
HWY_INLINE hn::Vec<D8> EncodeRun(D8 d8, const std::byte* in, const Scale& scale) {
  static_assert(kBits<F> == 8);
  const hn::Repartition<std::uint16_t, D8> d16;
  if constexpr (kItemSize<T> == 4) {
    const hn::Repartition<std::uint32_t, D8> d32;
    const std::size_t step = hn::Lanes(d32) * 4;
    const auto part = [&](std::size_t i) HWY_ATTR {
      return hn::BitCast(d16, EncodeSingles<F>(d32, LoadItems(d32, in + i * step), scale(i)));
    };
    const auto low = hn::ConcatEven(d16, part(1), part(0));
    const auto high = hn::ConcatEven(d16, part(3), part(2));
    return hn::ConcatOdd(d8, hn::BitCast(d8, high), hn::BitCast(d8, low));
  } else {
    const std::size_t step = hn::Lanes(d16) * 2;
    const auto low = EncodeHalves<F, T>(d16, LoadItems(d16, in), scale(0), scale(1));
    const auto high = EncodeHalves<F, T>(d16, LoadItems(d16, in + step), scale(2), scale(3));
    return hn::ConcatOdd(d8, hn::BitCast(d8, high), hn::BitCast(d8, low));
  }
}

/// A row's items, `count` of them and fewer than kItems, copied before zeros: what a short last
/// block is quantized as.
template <class T, std::size_t kItems>
struct Padded {
  alignas(64) std::byte items[kItems * kItemSize<T>];
  void Fill(const std::byte* from, std::size_t count) {
    std::memcpy(items, from, count * kItemSize<T>);
    std::memset(items + count * kItemSize<T>, 0, (kItems - count) * kItemSize<T>);
  }
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
