// SPDX-License-Identifier: Apache-2.0
// Computes scales from amaxes, a vector at a time. Compiled once per instruction set.
#pragma once

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/numerics/scale.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

/// Order of computed scales: that of the blocks or, for columns, the one that LaneScales reads.
enum class Places : std::uint8_t { kBlocks, kColumns };

/// Does EncodeE8M0Up for lanes from 0 to infinity. 7 ops. Adding the largest mantissa carries into
/// the exponent unless the mantissa is zero. Patterns from 1 to that of 2^-127 have code 0.
HWY_INLINE hn::Vec<DI> EncodeE8M0Lanes(hn::Vec<DF> x) {
  const DI di;
  const auto bits = hn::BitCast(di, x);
  const auto carried = hn::ShiftRight<23>(hn::Add(bits, hn::Set(di, 0x7FFFFF)));
  const auto is_tiny =
      hn::And(hn::Gt(bits, hn::Zero(di)),
              hn::Gt(hn::Set(di, static_cast<std::int32_t>(E8M0::kSmallestPowerBits + 1)), bits));
  const auto code = hn::Add(carried, hn::VecFromMask(di, is_tiny));  // a mask is -1
  return hn::Min(code, hn::Set(di, static_cast<std::int32_t>(E8M0::kMaxCode)));
}

/// Power-of-two scales, finite items: leaves the values alone and shifts EncodeMagnitudes' two
/// constants by the scale's exponent instead, or the pattern from which EncodeByTable counts. Saves
/// one multiply per value. The functions compute these constants from the scales' exponent fields,
/// with 3 to 5 ops each.
template <FloatFormat F, class T>
struct PowerConstants {
  static constexpr auto kBias = static_cast<std::int32_t>(F::kBias);
  static constexpr int kMaxExponent = static_cast<int>(F::kMaxCode >> F::kMantissaBits) - kBias;
  // Bounds of a scale's exponent field. Within them, F's smallest normal number over the scale and
  // b's product are normal numbers of fp32, for values that the scale keeps within F.
  static constexpr std::int32_t kSmallest = kMaxExponent + 24 - F::kMantissaBits;
  static constexpr std::int32_t kLargest =
      254 - kBias - (kByTable<F, T> ? F::kMantissaBits + 1 : 0);

  /// Returns the lanes whose scale, a power of two, is out of bounds and needs the encoder for any
  /// scale. A large scale does not need it if the block is all zeros.
  static HWY_INLINE hn::Mask<DI> IsOutside(hn::Vec<DI> field, hn::Vec<DI> amax) {
    const DI di;
    const auto is_large = hn::And(hn::Gt(field, hn::Set(di, kLargest)), hn::Gt(amax, hn::Zero(di)));
    return hn::Or(hn::Gt(hn::Set(di, kSmallest), field), is_large);
  }
  /// Returns the pattern of F's smallest normal number over the scale: as bfloat16 for bfloat16,
  /// else as fp32, because float16 is compared after widening. For EncodeByTable kStepsBelow less.
  static HWY_INLINE hn::Vec<DI> Floor(hn::Vec<DI> field) {
    const DI di;
    const auto exponent = hn::Sub(hn::Set(di, 255 - kBias), hn::Min(field, hn::Set(di, kLargest)));
    if constexpr (!std::is_same_v<T, BFloat16>) return hn::ShiftLeft<23>(exponent);
    const auto floor = hn::ShiftLeft<7>(exponent);
    if constexpr (!kByTable<F, T>) return floor;
    return hn::Sub(floor, hn::Set(di, static_cast<std::int32_t>(kStepsBelow<F>)));
  }
  /// Returns EncodeRule::kMultiplier for values under the scale: only the offset depends on it.
  static HWY_INLINE hn::Vec<DF> Multiplier(hn::Vec<DI> field) {
    const DI di;
    constexpr auto kField = static_cast<std::int32_t>(EncodeRule<F>::kField);
    constexpr auto kMask = static_cast<std::int32_t>(EncodeRule<F>::kOffsetMask);
    const auto power = hn::Min(field, hn::Set(di, kLargest));
    const auto offset =
        hn::And(hn::Add(power, hn::Set(di, kBias - 128 - kField)), hn::Set(di, kMask));
    return hn::BitCast(DF(),
                       hn::Add(hn::ShiftLeft<F::kMantissaBits>(offset), hn::Set(di, kField << 23)));
  }
};

/// Returns the values of Lanes(DF()) amax patterns from the i-th on.
template <class T>
HWY_INLINE hn::Vec<DF> AmaxValues(const std::byte* amaxes, std::size_t i) {
  return LoadFloats<T>(amaxes + i * kItemSize<T>);
}

/// Stores lanes from 0 to 255 as bytes.
HWY_INLINE void StoreBytes(hn::Vec<DI> lanes, std::byte* to) {
  const hn::Rebind<std::uint8_t, DF> d8;
  hn::StoreU(hn::DemoteTo(d8, lanes), d8, reinterpret_cast<std::uint8_t*>(to));
}

/// Does DecodeE8M0Reciprocal for code 254 - field: field 0 gives 2^-127, a subnormal. 3 ops.
HWY_INLINE hn::Vec<DF> PowerOfField(hn::Vec<DI> field) {
  const DI di;
  const auto subnormal = hn::Set(di, static_cast<std::int32_t>(E8M0::kSmallestPowerBits));
  const auto is_subnormal = hn::Eq(field, hn::Zero(di));
  return hn::BitCast(DF(), hn::IfThenElse(is_subnormal, subnormal, hn::ShiftLeft<23>(field)));
}

/// RuleE8M0 and RuleFloat32 compute vectors of scales from amaxes. Compute sets `stored` to the
/// scale_invs and `scale` to the scales, and returns the scales' exponent fields. It marks in
/// `outside` the lanes that need the encoder for any scale.
///
/// RuleE8M0: as MxRule. The exponent field of the scale 2^(127 - code) is 254 - code. About 18 ops.
template <FloatFormat F, class T>
struct RuleE8M0 {
  static HWY_INLINE hn::Vec<DI> Compute(hn::Vec<DF> amax, const ScaleRule& /*rule*/,
                                        hn::Vec<DI>& stored, hn::Vec<DF>& scale,
                                        hn::Vec<DI>& outside) {
    const DI di;
    constexpr float kReciprocalOfMax = 1.0f / kMaxValue<F>;  // MxRule multiplies, too
    stored = EncodeE8M0Lanes(hn::Mul(amax, hn::Set(DF(), kReciprocalOfMax)));
    const auto field = hn::Sub(hn::Set(di, static_cast<std::int32_t>(E8M0::kMaxCode)), stored);
    const auto is_outside = PowerConstants<F, T>::IsOutside(field, hn::BitCast(di, amax));
    outside = hn::Or(outside, hn::VecFromMask(di, is_outside));
    scale = PowerOfField(field);
    return field;
  }
  static HWY_INLINE void Store(hn::Vec<DI> stored, std::byte* to, std::size_t i) {
    StoreBytes(stored, to + i);
  }
};

/// Does RuleE8M0 for bfloat16 amaxes, which stay in 16-bit lanes until fp32 is needed.
template <FloatFormat F>
struct BFloat16RuleE8M0 {
  using C = PowerConstants<F, BFloat16>;
  static constexpr std::uint32_t kMax = std::bit_cast<std::uint32_t>(kMaxValue<F>) >> 16;
  static_assert(std::bit_cast<std::uint32_t>(kMaxValue<F>) % (1u << 16) == 0);
  static constexpr std::uint32_t kMantissa = (1u << BFloat16::kMantissaBits) - 1;

  /// Returns the codes of amaxes, 254 minus the scales' exponent fields: the exponent of amax less
  /// that of F's largest number, plus 1 if amax's mantissa is the larger one. RuleE8M0 multiplies
  /// by a rounded reciprocal and gives the same codes: equal mantissas give a power of two, and the
  /// next mantissa is far from it. Marks in `outside` the lanes that need the encoder for any
  /// scale: the field is too small, or it is too large and the amax is not zero. 9 or 10 ops.
  static HWY_INLINE hn::Vec<D16> Codes(hn::Vec<D16> amax, hn::Vec<D16>& outside) {
    const D16 d16;
    const auto set = [&](std::uint32_t value)
                         NF_INLINE_ATTR { return hn::Set(d16, static_cast<std::uint16_t>(value)); };
    constexpr std::uint32_t kExponent = (kMax >> BFloat16::kMantissaBits) - 127;
    constexpr std::uint32_t kCarry = kMantissa - (kMax & kMantissa);
    const auto exponent = hn::ShiftRight<BFloat16::kMantissaBits>(hn::Add(amax, set(kCarry)));
    const auto is_infinite = hn::Eq(amax, set(kInfinityBits<BFloat16>));
    const auto code = hn::IfThenElse(is_infinite, set(E8M0::kMaxCode),
                                     hn::SaturatedSub(exponent, set(kExponent)));
    const auto below = hn::SaturatedSub(code, set(E8M0::kMaxCode - C::kSmallest));
    const auto above = hn::SaturatedSub(set(kSmallestCode), code);
    outside = hn::Or(outside, hn::Or(below, hn::Min(above, amax)));
    return code;
  }
  /// Does PowerConstants::Floor for codes. 3 ops.
  static HWY_INLINE hn::Vec<D16> Floor(hn::Vec<D16> code) {
    const D16 d16;
    constexpr std::uint32_t kBelow = kByTable<F, BFloat16> ? kStepsBelow<F> : 0;
    constexpr std::uint32_t kOffset = ((F::kBias - 1u) << BFloat16::kMantissaBits) + kBelow;
    const auto most = hn::Max(code, hn::Set(d16, std::uint16_t{kSmallestCode}));
    return hn::Sub(hn::ShiftLeft<BFloat16::kMantissaBits>(most),
                   hn::Set(d16, static_cast<std::uint16_t>(kOffset)));
  }

 private:
  static constexpr std::uint16_t kSmallestCode = E8M0::kMaxCode - C::kLargest;
};

/// Does ScaleFromAmax, and computes the scale's inverse in fp32. 2 divisions and about 20 ops.
template <FloatFormat F, class T>
struct RuleFloat32 {
  static HWY_INLINE hn::Vec<DI> Compute(hn::Vec<DF> amax, const ScaleRule& rule,
                                        hn::Vec<DI>& stored, hn::Vec<DF>& scale,
                                        hn::Vec<DI>& outside) {
    const DF df;
    const DI di;
    const auto infinity = hn::Set(di, static_cast<std::int32_t>(kFloatInfinity));
    const auto one = hn::Set(df, 1.0f), epsilon = hn::Set(df, rule.amax_epsilon);
    const auto of = hn::IfThenElse(hn::Lt(amax, epsilon), epsilon, amax);
    const auto bits = hn::BitCast(di, of);
    auto quotient = hn::Div(hn::Set(df, kMaxValue<F>), of);
    const auto overflows = hn::Eq(hn::BitCast(di, quotient), infinity);
    quotient =
        hn::IfThenElse(hn::RebindMask(df, overflows), hn::Set(df, rule.overflow_scale), quotient);
    if (rule.force_pow_2_scales) quotient = hn::And(quotient, hn::BitCast(df, infinity));
    // Zero, infinity, NaN and negative values get the scale 1.
    const auto is_positive = hn::And(hn::Gt(bits, hn::Zero(di)), hn::Gt(infinity, bits));
    scale = hn::IfThenElse(hn::RebindMask(df, is_positive), quotient, one);
    stored = hn::BitCast(di, hn::Div(one, scale));
    const auto scale_bits = hn::BitCast(di, scale);
    const auto field = hn::ShiftRight<23>(scale_bits);
    const auto mantissa = hn::And(scale_bits, hn::Set(di, 0x7FFFFF));
    const auto is_outside = PowerConstants<F, T>::IsOutside(field, hn::BitCast(di, amax));
    outside = hn::Or(outside, hn::Or(mantissa, hn::VecFromMask(di, is_outside)));
    return field;
  }
  static HWY_INLINE void Store(hn::Vec<DI> stored, std::byte* to, std::size_t i) {
    hn::StoreU(stored, DI(), reinterpret_cast<std::int32_t*>(to) + i);
  }
};

HWY_INLINE bool IsZero(hn::Vec<DI> lanes) {
  return hn::AllTrue(DI(), hn::Eq(lanes, hn::Zero(DI())));
}

/// Stores two vectors of columns in LaneScales' order. 16-bit items: the lanes of the even columns,
/// then those of the odd columns; 2 ops. fp32: as they are.
template <class T>
HWY_INLINE void StoreLanes(hn::Vec<DF> low, hn::Vec<DF> high, float* to) {
  const DF df;
  if constexpr (kItemSize<T> == 4) {
    hn::StoreU(low, df, to);
    hn::StoreU(high, df, to + hn::Lanes(df));
  } else {
    hn::StoreU(hn::ConcatEven(df, high, low), df, to);
    hn::StoreU(hn::ConcatOdd(df, high, low), df, to + hn::Lanes(df));
  }
}

/// Rounds non-negative numbers to F's steps, without F's upper limit: adds and subtracts 2^(23-M)
/// times the power of two at or below the number, so that the sum's last bit is one step. 4 ops
/// with a fused multiply-add, whose products are exact here, else 5.
template <FloatFormat F>
HWY_INLINE hn::Vec<DF> RoundToGrid(hn::Vec<DF> number) {
  const DF df;
  constexpr float kToSteps = static_cast<float>(1u << (23 - F::kMantissaBits));
  const auto exponent = BinadeOf(number, hn::Set(df, EncodeRule<F>::kSmallestNormal));
  const auto to_steps = hn::Set(df, kToSteps);
  if constexpr (HWY_NATIVE_FMA)
    return hn::NegMulAdd(exponent, to_steps, hn::MulAdd(exponent, to_steps, number));
  const auto base = hn::Mul(exponent, to_steps);
  return hn::Sub(hn::Add(base, number), base);
}

/// Returns the codes of wanted scale_invs, rounded to F, saturating. Sets `value` to the codes'
/// values and `scale` to 1 / (value * reciprocal_encode), at most the largest float. A division and
/// 13 ops with a fused multiply-add. Requires: `wanted` is not negative.
template <FloatFormat F>
HWY_INLINE hn::Vec<D32> TwoLevelScales(hn::Vec<DF> wanted, hn::Vec<DF> reciprocal_encode,
                                       hn::Vec<DF>& value, hn::Vec<DF>& scale) {
  const DF df;
  const auto number = hn::Min(wanted, hn::Set(df, kMaxValue<F>));  // saturates
  value = RoundToGrid<F>(number);
  scale = hn::Min(hn::Div(hn::Set(df, 1.0f), hn::Mul(value, reciprocal_encode)),
                  hn::Set(df, kLargestFloat));
  return hn::And(hn::ShiftRight<kCodeShift<F> >(EncodeMagnitudes<F, kCodeShift<F> >(number)),
                 hn::Set(D32(), kSignCode<F> - 1u));
}
/// Returns the blocks that need the slow path: the wanted scale_inv is above F's largest number, or
/// it is below F's smallest normal number (rounding error above 1/16) and the block is not all
/// zeros. In other blocks no product rounds to more than E2M1's largest number.
template <FloatFormat F>
HWY_INLINE hn::Mask<DF> NeedsSlowPath(hn::Vec<DF> wanted, hn::Vec<DF> amax) {
  const DF df;
  const auto small = hn::And(hn::Lt(wanted, hn::Set(df, EncodeRule<F>::kSmallestNormal)),
                             hn::Gt(amax, hn::Zero(df)));
  return hn::Or(small, hn::Gt(wanted, hn::Set(df, kMaxValue<F>)));
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
