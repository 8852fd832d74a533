// SPDX-License-Identifier: Apache-2.0
// Scales of two levels, and E2M1 codes packed by twos. Compiled once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_PACK_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_PACK_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_PACK_INL_H_
#endif

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES <= 32
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// S::ScaleBlock of all blocks of a batch, operation by operation: d = min(amax * encode_over_max,
/// largest), rounded to the scale's format; 1 / (that * reciprocal_encode), at most the largest
/// float. Amaxes are not NaN, the state's numbers positive and finite.
template <Scheme S, class T>
HWY_INLINE void DecideTwoLevels(Batch<S, T>& batch, const typename S::TensorState& state) {
  using F = typename S::Scale;
  const DF df;
  const hn::RebindToUnsigned<DF> d32;
  static_assert(kBatch<S> % hn::MaxLanes(DF()) == 0);
  alignas(64) float amax[kBatch<S>];
  for (std::size_t j = 0; j < kBatch<S>; ++j) amax[j] = MagnitudeValue<T>(batch.largest[j]);
  constexpr float kSmallestNormal = std::bit_cast<float>(EncodeRule<F>::kSmallestNormalField << 23);
  constexpr float kToSteps = static_cast<float>(1u << (23 - F::kMantissaBits));
  for (std::size_t j = 0; j < kBatch<S>; j += hn::Lanes(df)) {
    // At most the format's largest: what is beyond it saturates.
    const auto wanted = hn::Min(hn::Mul(hn::Load(df, amax + j), hn::Set(df, state.encode_over_max)),
                                hn::Set(df, kMaxValue<F>));
    const auto code =
        hn::And(hn::ShiftRight<kUpperByte>(EncodeMagnitudes<F, kUpperByte>(df, wanted)),
                hn::Set(d32, kSignCode<F> - 1u));
    // Added to 2^(23-M) times the power of two at or below it, a number is rounded to F's steps;
    // the difference is what the code says.
    const auto exponent = hn::And(wanted, hn::BitCast(df, hn::Set(d32, kFloatInfinity)));
    const auto base =
        hn::Mul(hn::Max(exponent, hn::Set(df, kSmallestNormal)), hn::Set(df, kToSteps));
    const auto value = hn::Sub(hn::Add(base, wanted), base);
    const auto scale =
        hn::Div(hn::Set(df, 1.0f), hn::Mul(value, hn::Set(df, state.reciprocal_encode)));
    hn::StoreU(code, d32, batch.scale_inv + j);
    hn::StoreU(hn::Min(scale, hn::Set(df, kLargestFloat)), df, batch.scale + j);
  }
}

/// E2M1 codes in bits 8 to 11 of lanes of 16 bits, or of 32 for fp32 items; the other bits are
/// zero. Products saturate.
template <class T, Items kItems, class D16, class V>
HWY_INLINE hn::Vec<D16> EncodeNibbles(D16 d16, hn::Vec<D16> items, V scale) {
  const hn::Repartition<std::uint32_t, D16> d32;
  const hn::Repartition<float, D16> df;
  const hn::RebindToSigned<D16> di;
  const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
  const auto sign = hn::ShiftRight<4>(hn::Xor(items, magnitude));
  const auto pairs = hn::BitCast(d32, magnitude);
  const auto even = EncodeScaled<E2M1, Items::kAny>(df, WidenEven<T, kItems>(d32, pairs), scale);
  const auto odd = EncodeScaled<E2M1, Items::kAny>(df, WidenOdd<T, kItems>(d32, pairs), scale);
  constexpr auto kCode = static_cast<std::uint16_t>(E2M1::kMaxCode << kUpperByte);
  const auto both = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
  const auto codes = hn::Or(hn::And(both, hn::Set(d16, kCode)), sign);
  if constexpr (kItems == Items::kOrdinary) return codes;
  const auto is_nan = hn::RebindMask(
      d16,
      hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int16_t>(kInfinityBits<T>))));
  return hn::IfThenElse(is_nan, hn::Set(d16, kCode), codes);
}
template <Items kItems, class D32, class V>
HWY_INLINE hn::Vec<D32> EncodeSingleNibbles(D32 d32, hn::Vec<D32> items, V scale) {
  const hn::RebindToFloat<D32> df;
  const hn::RebindToSigned<D32> di;
  const auto magnitude = hn::And(items, hn::Set(d32, ~kFloatSign));
  const auto sign = hn::ShiftRight<20>(hn::Xor(items, magnitude));
  constexpr std::uint32_t kCode = E2M1::kMaxCode << kUpperByte;
  const auto code = EncodeScaled<E2M1, Items::kAny>(df, hn::BitCast(df, magnitude), scale);
  const auto codes = hn::Or(hn::And(code, hn::Set(d32, kCode)), sign);
  if constexpr (kItems == Items::kOrdinary) return codes;
  const auto is_nan = hn::RebindMask(
      d32,
      hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<std::int32_t>(kFloatInfinity))));
  return hn::IfThenElse(is_nan, hn::Set(d32, kCode), codes);
}

/// Bytes of 2 * Lanes(d32) items: the first of two codes in the lower half.
template <class T, Items kItems, class D32, class V>
HWY_INLINE hn::Vec<hn::Rebind<std::uint8_t, D32>> PackRun(D32 d32, const std::byte* in, V scale) {
  const auto mask = hn::Set(d32, 0xFFu);
  if constexpr (kItemSize<T> == 2) {
    const hn::Repartition<std::uint16_t, D32> d16;
    const auto nibbles = hn::BitCast(d32, EncodeNibbles<T, kItems>(d16, LoadItems(d16, in), scale));
    // Bits 8 to 11 and 24 to 27 become bits 0 to 3 and 4 to 7.
    return hn::U8FromU32(
        hn::And(hn::Or(hn::ShiftRight<8>(nibbles), hn::ShiftRight<20>(nibbles)), mask));
  } else {
    const std::size_t step = hn::Lanes(d32) * sizeof(float);
    const auto low = EncodeSingleNibbles<kItems>(d32, LoadItems(d32, in), scale);
    const auto high = EncodeSingleNibbles<kItems>(d32, LoadItems(d32, in + step), scale);
    const auto even = hn::ConcatEven(d32, high, low), odd = hn::ConcatOdd(d32, high, low);
    return hn::U8FromU32(hn::And(hn::Or(hn::ShiftRight<8>(even), hn::ShiftRight<4>(odd)), mask));
  }
}

/// Packed codes of a row's blocks.
template <Scheme S, class T, Items kItems>
HWY_INLINE void PackBlocks(const std::byte* in, std::size_t blocks, const Batch<S, T>& batch,
                           std::uint8_t* out) {
  const hn::CappedTag<std::uint32_t, S::kBlock.cols / 2> d32;
  const hn::RebindToFloat<decltype(d32)> df;
  const hn::Rebind<std::uint8_t, decltype(d32)> d8;
  const std::size_t lanes = hn::Lanes(d32);
  for (std::size_t j = 0; j < blocks; ++j) {
    const auto scale = hn::Set(df, batch.scale[j]);
    for (std::size_t i = j * S::kBlock.cols / 2; i < (j + 1) * S::kBlock.cols / 2; i += lanes) {
      hn::StoreU(PackRun<T, kItems>(d32, in + 2 * i * kItemSize<T>, scale), d8, out + i);
    }
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
