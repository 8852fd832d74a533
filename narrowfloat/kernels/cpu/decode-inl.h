// SPDX-License-Identifier: Apache-2.0
// Decodes codes to values, rounds values to items, unpacks 4-bit codes. Compiled once per
// instruction set.
#pragma once

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23);
}

#if HWY_TARGET <= HWY_AVX2

/// Decodes two vectors of values. A code's bits, shifted to float16's exponent and mantissa, are
/// the value times 2^(bias-15). The processor widens this product exactly, subnormals included. 11
/// ops for E4M3, fewer for other formats.
template <FloatFormat F>
HWY_INLINE void DecodeCodes(const std::uint8_t* codes, hn::Vec<DF>& low, hn::Vec<DF>& high) {
  const DF df;
  const D16 d16;
  const hn::RebindToSigned<D16> di;
  const hn::Half<D16> dh;
  const hn::Rebind<hwy::float16_t, DF> df16;
  const hn::Half<D8> d8;
  constexpr int kShorter = Float16::kExponentBits - F::kExponentBits;
  auto half = hn::ShiftLeft<kCodeShift<F> >(hn::PromoteTo(d16, hn::LoadU(d8, codes)));
  if constexpr (kShorter > 0) {
    // The arithmetic shift keeps the sign at the top; kClear removes its copies below.
    constexpr auto kClear = static_cast<std::uint16_t>(~(0x8000u - (0x8000u >> kShorter)));
    half = hn::And(hn::BitCast(d16, hn::ShiftRight<kShorter>(hn::BitCast(di, half))),
                   hn::Set(d16, kClear));
    if constexpr (F::kMaxCode < kSignCode<F> - 1u) {
      constexpr auto kNan = static_cast<std::uint16_t>(F::kNanCode << (kCodeShift<F> - kShorter));
      const auto magnitude = hn::And(half, hn::Set(d16, std::uint16_t{0x7FFF}));
      half = hn::IfThenElse(hn::Eq(magnitude, hn::Set(d16, kNan)),
                            hn::Set(d16, static_cast<std::uint16_t>(Float16::kNanCode)), half);
    }
  }
  low = hn::PromoteTo(df, hn::BitCast(df16, hn::LowerHalf(dh, half)));
  high = hn::PromoteTo(df, hn::BitCast(df16, hn::UpperHalf(dh, half)));
  if constexpr (kShorter > 0) {
    const auto rebias = hn::Set(df, PowerOfTwo(Float16::kBias - F::kBias));
    low = hn::Mul(low, rebias);
    high = hn::Mul(high, rebias);
  }
}

#else

/// Decodes two vectors of values. A code's bits, shifted to binary32's exponent and mantissa, are
/// the value times 2^(bias-127), subnormals included. The product with 2^(127-bias) is exact. 10
/// ops for a vector, 7 for E2M1.
template <FloatFormat F>
HWY_INLINE void DecodeCodes(const std::uint8_t* codes, hn::Vec<DF>& low, hn::Vec<DF>& high) {
  const DF df;
  const D32 d32;
  const hn::Rebind<std::uint8_t, DF> d8;
  const auto decode = [&](const std::uint8_t* from) NF_INLINE_ATTR {
    const auto items = hn::PromoteTo(d32, hn::LoadU(d8, from));
    const auto magnitude = hn::And(items, hn::Set(d32, kSignCode<F> - 1u));
    const auto sign = hn::ShiftLeft<32 - kBits<F> >(hn::Xor(items, magnitude));
    const auto moved = hn::BitCast(df, hn::ShiftLeft<23 - F::kMantissaBits>(magnitude));
    auto value = hn::BitCast(d32, hn::Mul(moved, hn::Set(df, PowerOfTwo(127 - F::kBias))));
    if constexpr (F::kMaxCode < kSignCode<F> - 1u) {
      // The mantissa is infinity's or a NaN's already.
      const auto is_special = hn::Gt(magnitude, hn::Set(d32, F::kMaxCode));
      value = hn::Or(value, hn::IfThenElseZero(is_special, hn::Set(d32, kFloatInfinity)));
    }
    return hn::BitCast(df, hn::Or(value, sign));
  };
  low = decode(codes);
  high = decode(codes + hn::Lanes(df));
}

#endif

/// Returns value * scale_inv, with the one quiet NaN for every NaN.
HWY_INLINE hn::Vec<DF> Scaled(hn::Vec<DF> value, hn::Vec<DF> scale_inv) {
  const DF df;
  const auto product = hn::Mul(value, scale_inv);
  return hn::IfThenElse(hn::Eq(product, product), product,
                        hn::BitCast(df, hn::Set(D32(), kFloatNan)));
}

/// Rounds values to T: those of `low`, then those of `high`. Requires: a NaN is kFloatNan.
template <class T>
HWY_INLINE hn::Vec<D16> RoundTo(hn::Vec<DF> low, hn::Vec<DF> high) {
  [[maybe_unused]] const DF df;
  const D32 d32;
  const D16 d16;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto rounded = [&](hn::Vec<DF> value) NF_INLINE_ATTR {
      return hn::BitCast(d16, RoundToBFloat16(hn::BitCast(d32, value)));
    };
    return hn::ConcatOdd(d16, rounded(high), rounded(low));
  } else {
#if HWY_TARGET <= HWY_AVX2
    // The processor rounds to nearest-even in any rounding mode of the caller, and keeps subnormals
    // and the one quiet NaN.
    const hn::Rebind<hwy::float16_t, DF> df16;
    const hn::Half<D16> dh;
    return hn::Combine(d16, hn::BitCast(dh, hn::DemoteTo(df16, high)),
                       hn::BitCast(dh, hn::DemoteTo(df16, low)));
#else
    // Limits magnitudes to twice T's largest power of two, whose code is infinity's.
    const auto rounded = [&](hn::Vec<DF> value) NF_INLINE_ATTR {
      const auto bits = hn::BitCast(d32, value);
      const auto magnitude = hn::And(bits, hn::Set(d32, ~kFloatSign));
      const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
      const auto code = EncodeMagnitudes<T, 0>(
          hn::Min(hn::BitCast(df, magnitude), hn::Set(df, PowerOfTwo(T::kBias + 1))));
      return hn::BitCast(d16, hn::IfThenElse(hn::Eq(bits, hn::Set(d32, kFloatNan)),
                                             hn::Set(d32, T::kNanCode), hn::Or(code, sign)));
    };
    return hn::ConcatEven(d16, rounded(high), rounded(low));
#endif
  }
}

/// Stores one vector of values, rounded to T; any NaN becomes the one quiet NaN.
template <class T>
HWY_INLINE void StoreFloats(hn::Vec<DF> values, std::byte* to) {
  const DF df;
  const auto canonical =
      hn::IfThenElse(hn::Eq(values, values), values, hn::BitCast(df, hn::Set(D32(), kFloatNan)));
  if constexpr (kItemSize<T> == 4) {
    hn::StoreU(canonical, df, reinterpret_cast<float*>(to));
  } else {
    const hn::Rebind<std::uint16_t, DF> d16;
    hn::StoreU(hn::LowerHalf(d16, RoundTo<T>(canonical, canonical)), d16,
               reinterpret_cast<std::uint16_t*>(to));
  }
}

/// Permutes 8-byte units, so that a following InterleaveLower and InterleaveUpper yield memory
/// order although both work within 128-bit blocks.
HWY_INLINE hn::Vec<D8> InterleavingOrder(hn::Vec<D8> codes) {
  const hn::Repartition<std::uint64_t, D8> d64;
  constexpr std::size_t kUnits = hn::MaxLanes(d64);
  if constexpr (kUnits <= 2) return codes;
  alignas(64) std::uint64_t order[kUnits];
  for (std::size_t i = 0; i < kUnits; ++i) order[i] = i / 2 + i % 2 * (kUnits / 2);
  return hn::BitCast(
      D8(), hn::TableLookupLanes(hn::BitCast(d64, codes), hn::SetTableIndices(d64, order)));
}

/// Unpacks `count` 4-bit codes, two per byte and the first in the low half, to one per byte.
HWY_INLINE void UnpackCodes(const std::byte* packed, std::size_t count, std::byte* codes) {
  const D8 d8;
  const auto nibble = hn::Set(d8, std::uint8_t{0xF});
  auto* to = reinterpret_cast<std::uint8_t*>(codes);
  std::size_t i = 0;
  for (; i + 2 * hn::Lanes(d8) <= count; i += 2 * hn::Lanes(d8)) {
    const auto bytes =
        InterleavingOrder(hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(packed + i / 2)));
    const auto first = hn::And(bytes, nibble), second = hn::ShiftRight<4>(bytes);
    hn::StoreU(hn::InterleaveLower(d8, first, second), d8, to + i);
    hn::StoreU(hn::InterleaveUpper(d8, first, second), d8, to + i + hn::Lanes(d8));
  }
  for (; i < count; ++i) {
    to[i] = static_cast<std::uint8_t>(static_cast<unsigned>(packed[i / 2]) >> (i % 2 * 4) & 0xFu);
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
