// SPDX-License-Identifier: Apache-2.0
// Encodes to codes of 4 bits and packs two per byte. Compiled once per instruction set.
#pragma once

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/coders-inl.h"
#include "narrowfloat/kernels/cpu/pack_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

/// Encodes Lanes(D16()) items from the i-th on; each unit of kPackUnit items has one scale. Returns
/// codes in the top bits of lanes, zeros below.
template <class T, class Coder>
HWY_INLINE hn::Vec<D16> TopCodes(const std::byte* in, std::size_t i, const float* scales,
                                 const Coder& coder) {
  const D16 d16;
  if constexpr (kItemSize<T> == 2) {
    const auto scale = SpreadScales<cpu::kPackUnit / 2>(scales, i / 2);
    return coder.template Codes16<T>(LoadItems(d16, in + i * kItemSize<T>), scale, scale, i);
  } else {
    const D32 d32;
    const auto items = [&](std::size_t k)
                           NF_INLINE_ATTR { return LoadItems(d32, in + k * kItemSize<T>); };
    const auto codes = [&](std::size_t k) NF_INLINE_ATTR {
      return hn::BitCast(d16, coder.Codes32(items(k), SpreadScales<cpu::kPackUnit>(scales, k), k));
    };
    const auto signs = [&](std::size_t k) NF_INLINE_ATTR {
      return hn::BitCast(d16, Signs<Coder::kKind>(items(k)));
    };
    const std::size_t next = i + hn::Lanes(d32);
    return hn::Or(
        hn::ConcatEven(d16, codes(next), codes(i)),
        hn::And(hn::ConcatOdd(d16, signs(next), signs(i)), hn::Set(d16, std::uint16_t{0x8000})));
  }
}

/// Packs 2 * Lanes(D8()) 4-bit codes, the first of two in the low half of a byte. at(i) returns the
/// codes from the i-th on in the top bits of 16-bit lanes, zeros below.
template <class At>
HWY_INLINE hn::Vec<D8> PackCodes(const At& at) {
  const D16 d16;
  const D32 d32;
  const std::size_t lanes = hn::Lanes(d16);
  // `bytes` joins two codes in the top byte of 32-bit lanes; `pairs` joins two vectors of such
  // bytes in the top bytes of 16-bit lanes.
  const auto bytes = [&](std::size_t i) NF_INLINE_ATTR {
    const auto codes = hn::BitCast(d32, at(i * lanes));
    return hn::Or(codes, hn::ShiftLeft<12>(codes));
  };
  const auto pairs = [&](std::size_t i) NF_INLINE_ATTR {
    return hn::OddEven(hn::BitCast(d16, bytes(i + 1)),
                       hn::BitCast(d16, hn::ShiftRight<16>(bytes(i))));
  };
  const auto upper = hn::And(pairs(0), hn::Set(d16, std::uint16_t{0xFF00}));
  return TransposeQuads(hn::BitCast(D8(), hn::Or(upper, hn::ShiftRight<8>(pairs(2)))));
}

#if HWY_ARCH_X86
/// EncodeMagnitudes' multiplier with the whole offset in the lower half of the sum, not only its
/// lowest bits. That half is then negative, and adding e << M cancels the offset: the lane has the
/// code and zeros above it. Worked example, 1.5: e is 149, the lower half is 3 steps less 2 * 149,
/// and 3 - 298 + 2 * 149 = 3, which is 1.5.
inline constexpr float kWholeMultiplier = [] {
  constexpr std::uint32_t kField = EncodeRule<E2M1>::kField;
  constexpr std::uint32_t kOffset = 0u - ((kField + 1 - E2M1::kBias) << E2M1::kMantissaBits);
  return std::bit_cast<float>((kField << 23) + (kOffset & 0xFFFFu));
}();

/// Roundings of PackFinite: Codes returns E2M1's codes of value * scale, shifted left by kShift;
/// the other bits of the 32-bit lanes are 0. `value` has the even or (kOdd) the odd ones of 16-bit
/// items, `i` is the index of the first of these items. Requires: no value is negative or NaN.
/// NearestWhole: to nearest. Requires: no product rounds to more than the largest code. 5 ops.
struct NearestWhole {
  template <int kShift, bool kOdd>
  HWY_INLINE auto Codes(hn::Vec<DF> value, hn::Vec<DF> scale, std::size_t /*i*/) const {
    const auto product = hn::Mul(value, scale);
    return hn::BitCast(hn::RebindToSigned<DF>(),
                       EncodeMagnitudes<E2M1, kShift>(product, kWholeMultiplier));
  }
};
#if HWY_TARGET <= HWY_AVX3
/// StochasticWhole: rounds as AddDither and TruncateToE2M1 do, but truncates while it adds
/// EncodeMagnitudes' multiple of the binade. Other instruction sets cannot set the rounding of one
/// operation. 10 ops for even items, 11 for odd ones.
struct StochasticWhole {
  const std::uint8_t* random;

  template <int kShift, bool kOdd>
  HWY_INLINE auto Codes(hn::Vec<DF> value, hn::Vec<DF> scale, std::size_t i) const {
    const DF df;
    const D16 d16;
    const auto bytes = hn::PromoteTo(d16, hn::LoadU(hn::Half<D8>(), random + i));
    const auto product = hn::Min(hn::Mul(value, scale), hn::Set(df, kMaxValue<E2M1>));
    const auto binade = BinadeOf(product, hn::Set(df, 1.0f));
    const auto raised = AddDither(product, binade, Dither<kOdd>(bytes));
    constexpr int kTruncate = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    const hn::Vec<DF> sum{_mm512_fmadd_round_ps(binade.raw, hn::Set(df, kWholeMultiplier).raw,
                                                raised.raw, kTruncate)};
    return hn::BitCast(hn::RebindToSigned<DF>(),
                       CodeOfSum<E2M1::kMantissaBits, kShift>(hn::BitCast(D32(), sum)));
  }
};
#endif

/// Encodes and packs 2 * Lanes(D8()) finite items. Joins the codes of an even item and of the next
/// item in their 32-bit lane, then narrows the lanes. Narrows the signs separately. To nearest 70
/// ops for bfloat16; PackCodes of Encode16 takes 85.
template <class T, class Rounding>
HWY_INLINE hn::Vec<D8> PackFinite(const std::byte* in, const float* scales,
                                  const Rounding& rounding) {
  constexpr int kShift = 6;                  // the smallest one that CodeOfSum supports
  static_assert(255u << kShift <= 0x7FFFu);  // ReorderDemote2To keeps such values
  const D8 d8;
  const D16 d16;
  const hn::RebindToSigned<D16> di16;
  const D32 d32;
  const std::size_t lanes = hn::Lanes(d16);
  const auto items = [&](std::size_t i)
                         NF_INLINE_ATTR { return LoadItems(d16, in + i * lanes * kItemSize<T>); };
  const auto pairs = [&](std::size_t i) NF_INLINE_ATTR {
    const auto magnitude = hn::BitCast(d32, hn::And(items(i), hn::Set(d16, std::uint16_t{0x7FFF})));
    const auto scale = SpreadScales<cpu::kPackUnit / 2>(scales, i * lanes / 2);
    // Or, not Add: clang 14 fuses an addition with CodeOfSum's multiplication into an instruction
    // of AVX-VNNI. Processors with AVX-512 VNNI alone (Zen 4) do not have it.
    const auto even = WidenEven<T, Inputs::kFinite>(magnitude);
    const auto odd = WidenOdd<T, Inputs::kFinite>(magnitude);
    const std::size_t first = i * lanes;
    return hn::Or(rounding.template Codes<kShift, false>(even, scale, first),
                  rounding.template Codes<kShift + 4, true>(odd, scale, first));
  };
  const auto words = [&](std::size_t i) NF_INLINE_ATTR {
    const hn::Vec<D8> signs{NF_INSTRUCTION(packs_epi16)(items(i).raw, items(i + 1).raw)};
    const auto is_negative = hn::And(signs, hn::Set(d8, std::uint8_t{0x80}));
    const auto factors = hn::Set(d16, std::uint16_t{(1u << (kShift - 4)) | (1u << (kShift + 8))});
    const decltype(hn::Zero(di16)) sign_bits{
        NF_INSTRUCTION(maddubs_epi16)(is_negative.raw, hn::BitCast(d8, factors).raw)};
    const auto codes = hn::ReorderDemote2To(di16, pairs(i), pairs(i + 1));
    return hn::ShiftRight<kShift>(hn::Or(codes, sign_bits));
  };
  return QuartersInOrder(hn::Vec<D8>{NF_INSTRUCTION(packus_epi16)(words(0).raw, words(2).raw)});
}
#endif

/// Encodes two rows of Lanes(D8) columns and packs them, the first row in the low half of each
/// byte. `scale` has one scale per column.
template <class T, class Coder>
HWY_INLINE hn::Vec<D8> PackColumnRun(const std::byte* first, const std::byte* second,
                                     const LaneScales& scale, const Coder& first_coder,
                                     const Coder& second_coder) {
  const D16 d16;
  const D32 d32;
  const auto codes = [&](const std::byte* row, const Coder& coder, std::size_t i) NF_INLINE_ATTR {
    const std::size_t at = i * hn::Lanes(d16);
    const std::byte* from = row + at * kItemSize<T>;
    if constexpr (kItemSize<T> == 2) {
      return coder.template Codes16<T>(LoadItems(d16, from), scale(2 * i), scale(2 * i + 1), at);
    } else {
      constexpr Inputs kInputs = Coder::kKind;
      const std::size_t lanes = hn::Lanes(d32);
      const auto low = LoadItems(d32, from), high = LoadItems(d32, from + lanes * 4);
      return SignedPairs<kInputs>(coder.Codes32(low, scale(2 * i), at),
                                  coder.Codes32(high, scale(2 * i + 1), at + lanes), low, high);
    }
  };
  const auto both = [&](std::size_t i) NF_INLINE_ATTR {  // in upper bytes, zeros below
    return hn::Or(codes(second, second_coder, i), hn::ShiftRight<4>(codes(first, first_coder, i)));
  };
  if constexpr (kItemSize<T> == 2) {
    return UpperBytes(both(0), both(1));
  } else {
    return TransposeQuads(hn::BitCast(D8(), hn::Or(both(0), hn::ShiftRight<8>(both(1)))));
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
