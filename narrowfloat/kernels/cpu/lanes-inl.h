// SPDX-License-Identifier: Apache-2.0
// Vector code that all CPU kernels share: loading, magnitudes, encoding. Compiled once per
// instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lookup-inl.h"
#include "narrowfloat/kernels/geometry.h"
#include "narrowfloat/numerics/codec.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Tags of whole vectors: of codes, of 16-bit items, of fp32 values, of their bits, unsigned and
// signed, and of binary64 values.
using D8 = hn::ScalableTag<std::uint8_t>;
using D16 = hn::Repartition<std::uint16_t, D8>;
using DF = hn::Repartition<float, D8>;
using D32 = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using DD = hn::Repartition<double, DF>;

/// Unsigned integer as wide as an item of T, and the pattern (the bits) of infinity in it.
template <class T>
using BitsOf = std::conditional_t<kItemSize<T> == 4, std::uint32_t, std::uint16_t>;
template <class T>
inline constexpr std::uint32_t kInfinityBits = T::kMaxCode + 1u;
template <>
inline constexpr std::uint32_t kInfinityBits<float> = kFloatInfinity;

/// Rounds fp32 values, as bits, to bfloat16's precision, to nearest-even. The upper half of each
/// lane is the bfloat16, the lower half is undefined. Requires: a NaN is kFloatNan. 4 ops.
HWY_INLINE hn::Vec<D32> RoundToBFloat16(hn::Vec<D32> bits) {
  const D32 d32;
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  return hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFFu)), odd);
}

/// Factor that corrects the exponent of a float16 whose bits were shifted to fp32's exponent and
/// mantissa: 2^(127 - 15), because the biases are 15 and 127.
inline constexpr float kHalfRebias = 0x1p112f;

/// Returns the value of a magnitude pattern: the bits of an item without its sign.
template <class T>
HWY_INLINE float MagnitudeValue(std::uint32_t bits) {
  if constexpr (kItemSize<T> == 4) return std::bit_cast<float>(bits);
  if constexpr (kItemSize<T> == 2) return narrowfloat::Decode<T>(bits);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadItems(D d, const std::byte* at) {
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(at));
}

/// Returns `vector`. On x86, an empty asm statement hides its origin from the compiler, which then
/// folds no constant and does not load the vector again for a use as another type. Such loads limit
/// the speed of kernels, twice as much if they cross cache lines.
template <class V>
HWY_INLINE V Opaque(V vector) {
#if HWY_ARCH_X86
  asm("" : "+v"(vector.raw));
#endif
  return vector;
}

#if HWY_ARCH_X86
// Names the intrinsic for whole vectors of this instruction set, where Highway 1.0.3 has no
// function. packs_epi16 and packus_epi16 narrow 16-bit lanes to bytes, saturating to [-128, 127] or
// to [0, 255]. Each 128-bit block of the result joins a block of the first vector and one of the
// second. maddubs_epi16 multiplies unsigned bytes by signed factors and adds adjacent products.
#if HWY_TARGET <= HWY_AVX3
#define NF_INSTRUCTION(name) _mm512_##name
#elif HWY_TARGET <= HWY_AVX2
#define NF_INSTRUCTION(name) _mm256_##name
#else
#define NF_INSTRUCTION(name) _mm_##name
#endif
#endif

/// Tag of whole vectors of items of T, as signed integers.
template <class T>
using MagnitudeTag = hn::ScalableTag<std::make_signed_t<BitsOf<T>>>;

/// Items that a vector function accepts.
enum class Inputs {
  kFinite,  // finite, with products that the format holds: nearly always so, tried first
  kAll,     // any: NaN, infinities and products beyond the format too
};

/// Returns the magnitude patterns of items as signed integers, which have the order of the values;
/// NaN is the largest. With kAll, replaces NaN by 0. 1 op for kFinite, 3 for kAll.
template <class T, Inputs kInputs, class DI>
HWY_INLINE hn::Vec<DI> Magnitudes(DI di, hn::Vec<DI> items) {
  using I = hn::TFromD<DI>;
  constexpr auto kMagnitude = static_cast<I>(~(I{1} << (sizeof(I) * 8 - 1)));
  const auto magnitude = hn::And(items, hn::Set(di, kMagnitude));
  if constexpr (kInputs == Inputs::kFinite) return magnitude;
  const auto is_nan = hn::Gt(magnitude, hn::Set(di, static_cast<I>(kInfinityBits<T>)));
  return hn::IfThenZeroElse(is_nan, magnitude);
}

/// Returns the largest lane. Requires: lanes are not negative.
template <class DI>
HWY_INLINE std::uint32_t LargestLane(DI di, hn::Vec<DI> lanes) {
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, lanes)));
}

/// Step that applies float16's exponent correction (kHalfRebias): widening, or computing the scale,
/// which is multiplied by it beforehand.
enum class Rebias { kWidening, kInScale };

/// Returns the fp32 values of 16-bit magnitude patterns in the low halves of lanes; bfloat16 may
/// have signs. float16 requires zeros in the high halves. With kAll, infinity and NaN are kept.
/// WidenEven and WidenOdd widen the even and the odd 16-bit lanes. bfloat16: 1 op each. float16: 3
/// ops (2 with kInScale), 6 with kAll; multiplying by 2^112 makes subnormals normal, too.
template <class T, Inputs kInputs, Rebias kRebias = Rebias::kWidening>
HWY_INLINE hn::Vec<DF> WidenMagnitudes(hn::Vec<D32> low_halves) {
  const DF df;
  const DI di;
  if constexpr (std::is_same_v<T, BFloat16>) {
    return hn::BitCast(df, hn::ShiftLeft<16>(low_halves));
  } else {
    const auto moved = hn::BitCast(df, hn::ShiftLeft<13>(low_halves));
    if constexpr (kRebias == Rebias::kInScale) return moved;
    const auto value = hn::Mul(moved, hn::Set(df, kHalfRebias));
    if constexpr (kInputs == Inputs::kFinite) return value;
    const auto beyond =
        hn::Gt(hn::BitCast(di, low_halves), hn::Set(di, static_cast<std::int32_t>(T::kMaxCode)));
    return hn::Or(value, hn::IfThenElseZero(hn::RebindMask(df, beyond),
                                            hn::BitCast(df, hn::Set(D32(), kFloatInfinity))));
  }
}
template <class T, Inputs kInputs, Rebias kRebias = Rebias::kWidening>
HWY_INLINE hn::Vec<DF> WidenEven(hn::Vec<D32> pairs) {
  if constexpr (std::is_same_v<T, BFloat16>) return WidenMagnitudes<T, kInputs>(pairs);
  return WidenMagnitudes<T, kInputs, kRebias>(hn::And(pairs, hn::Set(D32(), 0xFFFFu)));
}
template <class T, Inputs kInputs, Rebias kRebias = Rebias::kWidening>
HWY_INLINE hn::Vec<DF> WidenOdd(hn::Vec<D32> pairs) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return hn::BitCast(DF(), hn::And(pairs, hn::Set(D32(), 0xFFFF0000u)));
  return WidenMagnitudes<T, kInputs, kRebias>(hn::ShiftRight<16>(pairs));
}

/// Loads Lanes(DF()) items as fp32, exactly. NaN stays NaN. bfloat16: 2 ops. float16: 1 with AVX2
/// or AVX-512, whose conversion is exact, else 10.
template <class T>
HWY_INLINE hn::Vec<DF> LoadFloats(const std::byte* from) {
  const DF df;
  const D32 d32;
  if constexpr (kItemSize<T> == 4) {
    return LoadItems(df, from);
  } else if constexpr (std::is_same_v<T, Float16> && HWY_TARGET <= HWY_AVX2) {
    return hn::PromoteTo(df, LoadItems(hn::Rebind<hwy::float16_t, DF>(), from));
  } else {
    const auto items = hn::PromoteTo(d32, LoadItems(hn::Rebind<std::uint16_t, DF>(), from));
    if constexpr (std::is_same_v<T, BFloat16>) return WidenMagnitudes<T, Inputs::kAll>(items);
    const auto magnitude = hn::And(items, hn::Set(d32, 0x7FFFu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(items, magnitude));
    return hn::Or(WidenMagnitudes<T, Inputs::kAll>(magnitude), hn::BitCast(df, sign));
  }
}

/// Returns `(steps + (exponent << M)) << kShift` in the low 16 bits of each lane; the high 16 are
/// undefined. `sum` comes from EncodeMagnitudes: its high 16 bits are the exponent field and zeros
/// below it, its low 16 bits the steps. x86: one PMADDWD, which requires kShift + M >= 7.
template <int kMantissa, int kShift>
HWY_INLINE hn::Vec<D32> CodeOfSum(hn::Vec<D32> sum) {
#if HWY_ARCH_X86
  const D32 d32;
  const DI di;
  const hn::Repartition<std::int16_t, D32> d16;
  static_assert(kShift + kMantissa >= 7);
  constexpr std::uint32_t kLow = 1u << kShift, kHigh = 1u << (kShift + kMantissa - 7 + 16);
  const auto factors = hn::BitCast(d16, hn::Set(d32, kHigh | kLow));
  auto unused = hn::Zero(di);
  return hn::BitCast(
      d32, hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, sum), factors, hn::Zero(di), unused));
#else
  return hn::ShiftLeft<kShift>(hn::Add(sum, hn::ShiftLeft<kMantissa>(hn::ShiftRight<23>(sum))));
#endif
}

/// Constants of EncodeMagnitudes. A field is an exponent field of fp32.
template <FloatFormat F>
struct EncodeRule {
  static constexpr std::uint32_t kField = 127u + 23u - F::kMantissaBits;  // of the sum, for b = 1
  static constexpr std::uint32_t kSmallestNormalField = 128u - F::kBias;
  static constexpr float kSmallestNormal = std::bit_cast<float>(kSmallestNormalField << 23);

  // Number that is added to the sum's exponent field e: the multiplier's low bits have it, shifted
  // left by M. Only the lowest bits of the sum of both reach the code.
  static constexpr std::uint32_t kOffsetMask = (2 * kSignCode<F> - 1) >> F::kMantissaBits;
  static constexpr std::uint32_t kOffset = (F::kBias - 1u - kField) & kOffsetMask;
  static constexpr float kMultiplier =
      std::bit_cast<float>((kField << 23) + (kOffset << F::kMantissaBits));
};

/// Returns the power of two at or below a value, but at least `least`. 2 ops. Requires: the value
/// is not negative.
HWY_INLINE hn::Vec<DF> BinadeOf(hn::Vec<DF> value, hn::Vec<DF> least) {
  return hn::Max(hn::And(value, hn::BitCast(DF(), hn::Set(D32(), kFloatInfinity))), least);
}

/// Does the last two ops of EncodeMagnitudes for a given b, `base`.
template <FloatFormat F, int kShift>
HWY_INLINE hn::Vec<D32> EncodeFromBase(hn::Vec<DF> value, hn::Vec<DF> base,
                                       hn::Vec<DF> multiplier) {
  const auto sum = hn::MulAdd(base, multiplier, value);
  return CodeOfSum<F::kMantissaBits, kShift>(hn::BitCast(D32(), sum));
}
/// Returns the code of F nearest to `value`, shifted left by kShift, in the lower half of each
/// lane; the upper half is undefined. 4 ops. Requires: the value is not negative and not NaN, and
/// rounds to at most F's largest number, or to F's infinity if the caller wants that.
///
/// With b the power of two at or below the value, but not below F's smallest normal, the sum b *
/// 2^(23-M) + value has steps of exactly b * 2^-M, F's own. The addition rounds to nearest-even on
/// F's grid, subnormals included, and leaves value / (b * 2^-M) in its low bits. The exponent field
/// e of the sum, shifted onto F's exponent, gives the rest of the code. The constant part of both
/// is folded into the multiplier of b (kOffset).
/// Worked example, E4M3, 1.1875: b = 1, steps of 1/8, 9.5 is a tie and becomes 10 (even): sum
/// mantissa 10 + 152, e = 147; 162 + 8 * 147 = 1338 = 0x3A mod 256, which is 1.25. The
/// multiplication is exact (b is a power of two), so targets without FMA give the same bits.
/// `smallest` is the lower bound of b, `multiplier` its factor.
template <FloatFormat F, int kShift>
HWY_INLINE hn::Vec<D32> EncodeMagnitudes(hn::Vec<DF> value, hn::Vec<DF> smallest,
                                         hn::Vec<DF> multiplier) {
  return EncodeFromBase<F, kShift>(value, BinadeOf(value, smallest), multiplier);
}
template <FloatFormat F, int kShift>
HWY_INLINE hn::Vec<D32> EncodeMagnitudes(hn::Vec<DF> value,
                                         float multiplier = EncodeRule<F>::kMultiplier) {
  return EncodeMagnitudes<F, kShift>(value, hn::Set(DF(), EncodeRule<F>::kSmallestNormal),
                                     hn::Set(DF(), multiplier));
}

/// Scale providers of EncodeRun: operator()(i) returns the scales of the i-th vector of fp32
/// values. UniformScale: one scale for all lanes.
struct UniformScale {
  float scale;
  HWY_INLINE hn::Vec<DF> operator()(std::size_t /*i*/) const { return hn::Set(DF(), scale); }
};
/// RebiasedScale: one scale, multiplied by kHalfRebias, for finite float16. Requires: the scale is
/// below kTooLarge.
struct RebiasedScale : UniformScale {
  static constexpr float kTooLarge = 0x1p127f / kHalfRebias * 2;
};
template <class Scale>
inline constexpr Rebias kRebiasOf =
    std::is_same_v<Scale, RebiasedScale> ? Rebias::kInScale : Rebias::kWidening;
/// LaneScales: one scale per lane. For 16-bit items, the scales of a vector's even lanes are stored
/// before the scales of its odd lanes.
struct LaneScales {
  const float* scales;
  HWY_INLINE hn::Vec<DF> operator()(std::size_t i) const {
    return hn::LoadU(DF(), scales + i * hn::Lanes(DF()));
  }
};

/// Type of a stored result of PowerConstants::Floor (scales-inl.h). bfloat16 has fp32's exponents,
/// so its items are compared before they are widened.
template <class T>
using FloorBits = std::conditional_t<std::is_same_v<T, BFloat16>, std::uint16_t, std::uint32_t>;

/// Concatenates part(d, first), part(d, first + kLanes), ... to one vector of D. A part has kLanes
/// lanes, or all lanes of D if D has fewer. Calls `part` in this order.
template <std::size_t kLanes, class D, class Part>
HWY_INLINE hn::Vec<D> JoinParts(D d, std::size_t first, const Part& part) {
  if constexpr (hn::MaxLanes(d) <= kLanes) {
    return part(d, first);
  } else {
    const hn::Half<D> half;
    const auto lower = JoinParts<kLanes>(half, first, part);
    return hn::Combine(d, JoinParts<kLanes>(half, first + hn::Lanes(half), part), lower);
  }
}

/// Returns the scales of the lanes from `lane` on, where scales[i] is the scale of lanes i * kPer
/// to (i + 1) * kPer - 1.
template <std::size_t kPer>
HWY_INLINE hn::Vec<DF> SpreadScales(const float* scales, std::size_t lane) {
  return JoinParts<kPer>(DF(), lane, [&](auto d, std::size_t i) NF_INLINE_ATTR {
    return hn::Set(d, scales[i / kPer]);
  });
}

/// Provides EncodeRun with PowerConstants, one per lane. bfloat16's floors are in the order of the
/// items in memory.
template <class T>
struct LanePowersOfTwo {
  const FloorBits<T>* floors;
  const float* multipliers;
  HWY_INLINE auto Floor(std::size_t i) const {
    const hn::Repartition<FloorBits<T>, DF> d;
    return hn::LoadU(d, floors + i * hn::Lanes(d));
  }
  HWY_INLINE hn::Vec<DF> Multiplier(std::size_t i) const {
    return hn::LoadU(DF(), multipliers + i * hn::Lanes(DF()));
  }
};
template <class Scale>
concept PowerOfTwoScales = requires(const Scale& scale) {
  scale.Multiplier(0);
};

/// Left shift that moves a code to the top of 16 bits.
template <FloatFormat F>
inline constexpr int kCodeShift = 16 - kBits<F>;

/// Returns F's code of value * scale, as EncodeMagnitudes returns codes. With kAll, saturates.
template <FloatFormat F, Inputs kInputs>
HWY_INLINE hn::Vec<D32> EncodeScaled(hn::Vec<DF> value, hn::Vec<DF> scale) {
  auto product = hn::Mul(value, scale);
  if constexpr (kInputs == Inputs::kAll) product = hn::Min(product, hn::Set(DF(), kMaxValue<F>));
  return EncodeMagnitudes<F, kCodeShift<F>>(product);
}

#if HWY_TARGET <= HWY_AVX3
/// Encodes values with signs as EncodeMagnitudes encodes magnitudes. VRANGEPS returns the larger of
/// two magnitudes with the sign of its first operand, so that b and the sum have the value's sign.
/// CodeOfSum moves this sign into the upper half of the lane. 4 ops.
template <FloatFormat F, int kShift>
HWY_INLINE hn::Vec<D32> EncodeSigned(hn::Vec<DF> value) {
  static_assert(kShift + F::kMantissaBits + 8 >= 16);
  constexpr int kLargerMagnitude = 3;  // VRANGEPS: the sign of the first operand
  const DF df;
  const auto minus_infinity = hn::BitCast(df, hn::Set(D32(), kFloatSign | kFloatInfinity));
  const hn::Vec<DF> base{_mm512_range_ps(hn::And(value, minus_infinity).raw,
                                         hn::Set(df, EncodeRule<F>::kSmallestNormal).raw,
                                         kLargerMagnitude)};
  return EncodeFromBase<F, kShift>(value, base, hn::Set(df, EncodeRule<F>::kMultiplier));
}
#endif

/// Joins the low halves of 32-bit lanes: `even` gives the even 16-bit lanes, `odd` the odd ones. 2
/// ops.
HWY_INLINE hn::Vec<D16> JoinLowHalves(hn::Vec<D32> even, hn::Vec<D32> odd) {
  return hn::OddEven(hn::BitCast(D16(), hn::ShiftLeft<16>(odd)), hn::BitCast(D16(), even));
}

/// Adds the signs of 16-bit items to codes in the top bits of 16-bit lanes, zeros below them. With
/// kAll, returns F's NaN where an item is NaN. 2 ops for finite items, 4 for all.
template <FloatFormat F, class T, Inputs kInputs>
HWY_INLINE hn::Vec<D16> WithSigns(hn::Vec<D16> codes, hn::Vec<D16> items, hn::Vec<D16> magnitude) {
  const auto with_signs = hn::Or(codes, hn::Xor(items, magnitude));
  if constexpr (kInputs == Inputs::kFinite) return with_signs;
  const D16 d16;
  const hn::RebindToSigned<D16> di;
  const auto is_nan = hn::RebindMask(
      d16,
      hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int16_t>(kInfinityBits<T>))));
  constexpr auto kNan = static_cast<std::uint16_t>(F::kNanCode << kCodeShift<F>);
  return hn::IfThenElse(is_nan, hn::Set(d16, kNan), with_signs);
}

/// Encodes the i-th vector of 16-bit items of a run. Returns codes with signs in the top bits of
/// 16-bit lanes, zeros below them. bfloat16: 17 ops for finite items, 15 on AVX-512 or under
/// power-of-two scales, 21 for all inputs. float16 under power-of-two scales: 19 ops.
template <FloatFormat F, class T, Inputs kInputs, class Scale>
HWY_INLINE hn::Vec<D16> Encode16(hn::Vec<D16> items, const Scale& scale, std::size_t i) {
  const D16 d16;
  const D32 d32;
  const DF df;
  constexpr int kShift = kCodeShift<F>;
#if HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<T, BFloat16> && kInputs == Inputs::kFinite &&
                !PowerOfTwoScales<Scale>) {
    const auto signed_pairs = hn::BitCast(d32, items);
    const auto even = WidenEven<T, kInputs>(signed_pairs);
    const auto odd = WidenOdd<T, kInputs>(signed_pairs);
    const auto codes = JoinLowHalves(EncodeSigned<F, kShift>(hn::Mul(even, scale(2 * i))),
                                     EncodeSigned<F, kShift>(hn::Mul(odd, scale(2 * i + 1))));
    return hn::OrAnd(codes, items, hn::Set(d16, std::uint16_t{0x8000}));
  }
#endif
  const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
  const auto pairs = hn::BitCast(d32, magnitude);
  const auto even = WidenEven<T, kInputs, kRebiasOf<Scale>>(pairs);
  const auto odd = WidenOdd<T, kInputs, kRebiasOf<Scale>>(pairs);
  const auto join = [&](hn::Vec<D32> even_codes, hn::Vec<D32> odd_codes) NF_INLINE_ATTR {
    return WithSigns<F, T, kInputs>(JoinLowHalves(even_codes, odd_codes), items, magnitude);
  };
  if constexpr (!PowerOfTwoScales<Scale>) {
    return join(EncodeScaled<F, kInputs>(even, scale(2 * i)),
                EncodeScaled<F, kInputs>(odd, scale(2 * i + 1)));
  } else {
    static_assert(kInputs == Inputs::kFinite);
    const auto even_by = scale.Multiplier(2 * i), odd_by = scale.Multiplier(2 * i + 1);
    if constexpr (std::is_same_v<T, BFloat16>) {
      const auto exponent = hn::And(items, hn::Set(d16, std::uint16_t{kInfinityBits<T>}));
      const auto bases = hn::BitCast(d32, hn::Max(exponent, scale.Floor(i)));
      return join(EncodeFromBase<F, kShift>(even, WidenEven<T, kInputs>(bases), even_by),
                  EncodeFromBase<F, kShift>(odd, WidenOdd<T, kInputs>(bases), odd_by));
    } else {
      const auto even_floor = hn::BitCast(df, scale.Floor(2 * i));
      const auto odd_floor = hn::BitCast(df, scale.Floor(2 * i + 1));
      return join(EncodeMagnitudes<F, kShift>(even, even_floor, even_by),
                  EncodeMagnitudes<F, kShift>(odd, odd_floor, odd_by));
    }
  }
}

/// Encodes fp32 items without their signs. Returns codes shifted left by kCodeShift<F> in the low
/// 16 bits of each lane; the high 16 are undefined. 6 ops for finite items (5 under a power-of-two
/// scale), 9 for all inputs.
template <FloatFormat F, Inputs kInputs, class Scale>
HWY_INLINE hn::Vec<D32> Encode32(hn::Vec<D32> items, const Scale& scale, std::size_t i) {
  const D32 d32;
  const DF df;
  const DI di;
  const auto magnitude = hn::And(items, hn::Set(d32, ~kFloatSign));
  if constexpr (PowerOfTwoScales<Scale>) {
    static_assert(kInputs == Inputs::kFinite);
    return EncodeMagnitudes<F, kCodeShift<F>>(hn::BitCast(df, magnitude),
                                              hn::BitCast(df, scale.Floor(i)), scale.Multiplier(i));
  } else {
    const auto codes = EncodeScaled<F, kInputs>(hn::BitCast(df, magnitude), scale(i));
    if constexpr (kInputs == Inputs::kFinite) return codes;
    const auto is_nan = hn::RebindMask(
        d32, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, std::int32_t{kFloatInfinity})));
    return hn::IfThenElse(is_nan, hn::Set(d32, F::kNanCode << kCodeShift<F>), codes);
  }
}

/// Returns items with the signs of their codes. Replaces NaN by 0, because its code has no sign.
template <Inputs kInputs>
HWY_INLINE hn::Vec<D32> Signs(hn::Vec<D32> items) {
  if constexpr (kInputs == Inputs::kFinite) return items;
  const D32 d32;
  const auto magnitude = hn::And(items, hn::Set(d32, ~kFloatSign));
  return hn::IfThenZeroElse(hn::Gt(magnitude, hn::Set(d32, kFloatInfinity)), items);
}

/// Adds the signs of items to the codes of Encode32. Returns codes in the top bits of 16-bit lanes,
/// zeros below them: `low` ones in even lanes, `high` ones in odd lanes. 6 ops for finite items.
template <Inputs kInputs>
HWY_INLINE hn::Vec<D16> SignedPairs(hn::Vec<D32> low_codes, hn::Vec<D32> high_codes,
                                    hn::Vec<D32> low_items, hn::Vec<D32> high_items) {
  const D16 d16;
  const auto low = hn::ShiftRight<16>(Signs<kInputs>(low_items));
  const auto high = Signs<kInputs>(high_items);
  const auto signs = hn::OddEven(hn::BitCast(d16, high), hn::BitCast(d16, low));
  return hn::Or(JoinLowHalves(low_codes, high_codes),
                hn::And(signs, hn::Set(d16, std::uint16_t{0x8000})));
}

/// Joins the upper bytes of the 16-bit lanes of `low` and then of `high`.
HWY_INLINE hn::Vec<D8> UpperBytes(hn::Vec<D16> low, hn::Vec<D16> high) {
  return hn::ConcatOdd(D8(), hn::BitCast(D8(), high), hn::BitCast(D8(), low));
}

/// Reorders the quarters of 128-bit blocks: the first quarter of each block, then the second
/// quarter of each, and so on. 1 op, or 0 if the vector is one block.
HWY_INLINE hn::Vec<D8> QuartersInOrder(hn::Vec<D8> blocks) {
  constexpr std::size_t kBlocks = hn::MaxLanes(D8()) / 16;
  if constexpr (kBlocks == 1) {
    return blocks;
  } else {
    const DI di;
    alignas(64) static constexpr auto kOrder = [] {
      std::array<std::int32_t, 4 * kBlocks> order{};
      for (std::size_t i = 0; i < order.size(); ++i) {
        order[i] = static_cast<std::int32_t>(i % kBlocks * 4 + i / kBlocks);
      }
      return order;
    }();
    return hn::BitCast(D8(), hn::TableLookupLanes(hn::BitCast(di, blocks),
                                                  hn::SetTableIndices(di, kOrder.data())));
  }
}

/// De-interleaves the bytes of 32-bit lanes: byte 1 of every lane, then byte 3, 0, 2, each filling
/// a quarter of the vector. 2 ops.
HWY_INLINE hn::Vec<D8> TransposeQuads(hn::Vec<D8> quads) {
  alignas(16) static constexpr std::uint8_t kQuarters[16] = {1, 5, 9, 13, 3, 7, 11, 15,
                                                             0, 4, 8, 12, 2, 6, 10, 14};
  return QuartersInOrder(hn::TableLookupBytes(quads, hn::LoadDup128(D8(), kQuarters)));
}

/// Encodes Lanes(D8()) items of T at `in`. `scale` provides scales or, for bfloat16, is a function
/// that encodes two vectors (EncodeSteps). Requires: scales are positive and finite. A product with
/// such a scale is NaN exactly where the item is NaN, so NaN is detected in the items.
template <FloatFormat F, class T, Inputs kInputs, class Scale>
HWY_INLINE hn::Vec<D8> EncodeRun(const std::byte* in, const Scale& scale) {
  static_assert(kBits<F> == 8);
  const D16 d16;
  if constexpr (kItemSize<T> == 4) {
    const D32 d32;
    const auto pairs = [&](std::size_t i) NF_INLINE_ATTR {
      const std::size_t bytes = hn::Lanes(d32) * 4;
      const auto low = LoadItems(d32, in + i * bytes), high = LoadItems(d32, in + (i + 1) * bytes);
      return SignedPairs<kInputs>(Encode32<F, kInputs>(low, scale, i),
                                  Encode32<F, kInputs>(high, scale, i + 1), low, high);
    };
    const auto quads = hn::Or(pairs(0), hn::ShiftRight<8>(pairs(2)));
    return TransposeQuads(hn::BitCast(D8(), quads));
#if HWY_TARGET == HWY_AVX3_DL
  } else if constexpr (requires(hn::Vec<D16> items) { scale(items, items); }) {
    return scale(LoadItems(d16, in), LoadItems(d16, in + 64));
  } else if constexpr (PowerOfTwoScales<Scale> && kByTable<F, T>) {
    static_assert(kInputs == Inputs::kFinite);
    return EncodeByTable<F>(LoadItems(d16, in), LoadItems(d16, in + 64), scale.Floor(0),
                            scale.Floor(1));
#endif
  } else {
    const auto part = [&](std::size_t i) NF_INLINE_ATTR {
      return Encode16<F, T, kInputs>(LoadItems(d16, in + i * hn::Lanes(d16) * 2), scale, i);
    };
    return UpperBytes(part(0), part(1));
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
