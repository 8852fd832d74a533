// SPDX-License-Identifier: Apache-2.0
// Decodes 8-bit codes to 16-bit items by tables in registers. Compiled once per instruction set.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode-inl.h"
#include "narrowfloat/kernels/cpu/decode_kernels.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"
#include "narrowfloat/kernels/dcheck.h"
#include "narrowfloat/schemes/mxfp8.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

HWY_INLINE const std::uint8_t* Bytes(const std::byte* at) {
  return reinterpret_cast<const std::uint8_t*>(at);
}

/// Calls step(codes, i, writer) for each kStep items of a run, where item i is in byte i /
/// kPerByte. Stages the last items in memory of a whole step. A step puts vectors of kVector bytes.
/// Requires: `count` is a multiple of kPerByte.
template <class T, std::size_t kStep, std::size_t kPerByte, std::size_t kVector = HWY_MAX_BYTES,
          class Step>
HWY_INLINE void ForEachStep(const std::byte* codes, std::size_t count, const VectorWriter& out,
                            const Step& step) {
  std::size_t i = 0;
  WithWriter<kVector>(out, [&](auto& items) NF_INLINE_ATTR {
    for (; i + kStep <= count; i += kStep)
      step(Bytes(codes) + i / kPerByte, i, items.From(i * kItemSize<T>));
  });
  if (i == count) return;
  alignas(64) std::uint8_t staged[kStep / kPerByte] = {};
  alignas(64) std::uint8_t items[kStep * kItemSize<T>];
  std::memcpy(staged, codes + i / kPerByte, (count - i) / kPerByte);
  step(staged, i, VectorWriter{items});
  std::memcpy(out.to + i * kItemSize<T>, items, (count - i) * kItemSize<T>);
}

/// True if CodeTable decodes codes of F to T.
template <FloatFormat F, class T>
inline constexpr bool kHasTable = kBits<F> == 8 && kItemSize<T> == 2;

/// Table that decodes 8-bit codes to 16-bit items. The index is the code's magnitude if that is
/// below 2^(M+1), else its mantissa with exponent 1. The rest of the code's exponent is added to
/// the entry's exponent field. This is exact for all codes if it is exact for the smallest normal
/// code and for the largest code.
/// Worked example, E4M3 to bfloat16 under scale 1: code 0x4A (5.0) has index 0b1010 (1.25 * 2^-6,
/// 0x3CA0) and exponent 0x4A - 0xA = 8 << 3, which adds 8 << 7: 0x40A0.
template <FloatFormat F, class T>
struct CodeTable {
  static constexpr std::size_t kEntries = std::size_t{2} << F::kMantissaBits;
  static constexpr std::uint32_t kSmallestNormal = 1u << F::kMantissaBits;

  alignas(16) std::uint8_t low[16] = {};  // bytes of the entries
  alignas(16) std::uint8_t high[16] = {};
};

/// Decodes `count` codes of one byte each by a table. finish(magnitude, i) returns the items'
/// magnitudes of the Lanes(D16()) items from i on. Returns false if a code is NaN or infinite:
/// items are then undefined. 22 ops for Lanes(D8()) items, and those of `finish`.
template <FloatFormat F, class T, class Finish>
HWY_INLINE bool DecodeByTable(const CodeTable<F, T>& table, const std::byte* codes,
                              std::size_t count, const VectorWriter& out, const Finish& finish) {
  const D8 d8;
  const D16 d16;
  constexpr std::uint32_t kSmallestNormal = CodeTable<F, T>::kSmallestNormal;
  // Loaded to registers, because the compiler assumes that stores of items may alias the table.
  const auto low = hn::LoadDup128(d8, table.low), high = hn::LoadDup128(d8, table.high);
  auto largest = hn::Zero(d8);
  ForEachStep<T, hn::MaxLanes(D8()), 1>(
      codes, count, out, [&](const std::uint8_t* in, std::size_t i, auto&& items) NF_INLINE_ATTR {
        const auto set = [&](std::uint32_t byte) NF_INLINE_ATTR {
          return hn::Set(d8, static_cast<std::uint8_t>(byte));
        };
        const auto code = InterleavingOrder(hn::LoadU(d8, in));
        const auto magnitude = hn::And(code, set(kSignCode<F> - 1u));
        const auto sign = hn::Xor(code, magnitude);
        largest = hn::Max(largest, magnitude);
        const auto mantissa = hn::And(code, set(kSmallestNormal - 1u));
        const auto index = hn::Min(magnitude, hn::Or(mantissa, set(kSmallestNormal)));
        const auto exponent = hn::Sub(magnitude, index);
        const auto entry_low = hn::TableLookupBytes(low, index);
        const auto entry_high = hn::TableLookupBytes(high, index);
        const auto put = [&](auto entry, auto added, auto sign_of, std::size_t at) NF_INLINE_ATTR {
          constexpr int kShift = T::kMantissaBits - F::kMantissaBits;
          const auto sum =
              hn::Add(hn::BitCast(d16, entry), hn::ShiftLeft<kShift>(hn::BitCast(d16, added)));
          items.Put(d16, hn::Or(finish(sum, i + at), hn::BitCast(d16, sign_of)), at * kItemSize<T>);
        };
        const auto zero = hn::Zero(d8);
        put(hn::InterleaveLower(d8, entry_low, entry_high), hn::InterleaveLower(d8, exponent, zero),
            hn::InterleaveLower(d8, zero, sign), 0);
        put(hn::InterleaveUpper(d8, entry_low, entry_high), hn::InterleaveUpper(d8, exponent, zero),
            hn::InterleaveUpper(d8, zero, sign), hn::Lanes(d16));
      });
  return hn::AllFalse(d8, hn::Gt(largest, hn::Set(d8, static_cast<std::uint8_t>(F::kMaxCode))));
}

#if HWY_TARGET == HWY_AVX3_DL
/// Table that decodes 8-bit codes to 16-bit items by their 7 bits of magnitude.
struct MagnitudeTable {
  alignas(64) std::uint8_t low[128] = {}, high[128] = {};
};

/// Decodes as DecodeByTable does, by a MagnitudeTable. 11 ops for 64 items, and those of `finish`.
template <FloatFormat F, class T, class Finish>
HWY_INLINE bool DecodeByMagnitude(const MagnitudeTable& table, const std::byte* codes,
                                  std::size_t count, const VectorWriter& out,
                                  const Finish& finish) {
  const D8 d8;
  const D16 d16;
  const auto low = hn::Load(d8, table.low), low_upper = hn::Load(d8, table.low + 64);
  const auto high = hn::Load(d8, table.high), high_upper = hn::Load(d8, table.high + 64);
  auto largest = hn::Zero(d8);
  ForEachStep<T, hn::MaxLanes(D8()), 1>(
      codes, count, out, [&](const std::uint8_t* in, std::size_t i, auto&& items) NF_INLINE_ATTR {
        const auto code = InterleavingOrder(hn::LoadU(d8, in));
        largest = hn::Max(largest, hn::And(code, hn::Set(d8, std::uint8_t{kSignCode<F> - 1u})));
        // Lookups use the lowest 7 bits of an index.
        const hn::Vec<D8> lower{_mm512_permutex2var_epi8(low.raw, code.raw, low_upper.raw)};
        const hn::Vec<D8> upper{_mm512_permutex2var_epi8(high.raw, code.raw, high_upper.raw)};
        const auto put = [&](auto entry, auto sign_of, std::size_t at) NF_INLINE_ATTR {
          const auto sign = hn::And(hn::BitCast(d16, sign_of), hn::Set(d16, std::uint16_t{0x8000}));
          items.Put(d16, hn::Or(finish(hn::BitCast(d16, entry), i + at), sign), at * kItemSize<T>);
        };
        put(hn::InterleaveLower(d8, lower, upper), hn::InterleaveLower(d8, code, code), 0);
        put(hn::InterleaveUpper(d8, lower, upper), hn::InterleaveUpper(d8, code, code),
            hn::Lanes(d16));
      });
  return hn::AllFalse(d8, hn::Gt(largest, hn::Set(d8, static_cast<std::uint8_t>(F::kMaxCode))));
}
#endif

/// Returns true if UniformTable supports the scale. From one binade above T's subnormals on,
/// products round alike in every binade.
template <FloatFormat F, class T>
HWY_INLINE bool HasUniformTable(float scale) {
  constexpr float kSmallest = narrowfloat::Decode<F>(CodeTable<F, T>::kSmallestNormal);
  constexpr float kBound = narrowfloat::Decode<T>(2u << T::kMantissaBits);
  return scale > 0.0f && kSmallest * scale >= kBound &&
         kMaxValue<F> * scale <= narrowfloat::Decode<T>(T::kMaxCode);
}

/// Returns the table of the products of a scale and the entries' values, rounded to T.
template <FloatFormat F, class T>
HWY_INLINE CodeTable<F, T> UniformTable(float scale) {
  constexpr std::size_t kPlaces = std::max<std::size_t>(16, 2 * hn::MaxLanes(DF()));
  alignas(64) static constexpr auto kValues = [] {
    std::array<float, kPlaces> values{};
    for (std::uint32_t i = 0; i < CodeTable<F, T>::kEntries; ++i)
      values[i] = narrowfloat::Decode<F>(i);
    return values;
  }();
  const DF df;
  const std::size_t lanes = hn::Lanes(df);
  alignas(64) std::uint16_t products[kPlaces];
  for (std::size_t i = 0; i < kPlaces; i += 2 * lanes) {
    const auto product = [&](std::size_t from) NF_INLINE_ATTR {
      return hn::Mul(hn::Load(df, kValues.data() + from), hn::Set(df, scale));
    };
    hn::Store(RoundTo<T>(product(i), product(i + lanes)), D16(), products + i);
  }
  CodeTable<F, T> table;
  const hn::Full128<std::uint8_t> d8;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(products);
  const auto first = hn::Load(d8, bytes), second = hn::Load(d8, bytes + 16);
  hn::Store(hn::ConcatEven(d8, second, first), d8, table.low);
  hn::Store(hn::ConcatOdd(d8, second, first), d8, table.high);
  return table;
}

template <FloatFormat F, class T>
HWY_INLINE bool DecodeByUniformTable(const CodeTable<F, T>& table, const std::byte* codes,
                                     std::size_t count, const VectorWriter& out) {
  return DecodeByTable<F, T>(table, codes, count, out,
                             [](auto magnitude, std::size_t) NF_INLINE_ATTR { return magnitude; });
}

/// Tables for power-of-two scales whose products are normal numbers of T: the scale's exponent is
/// added to the entry's exponent. Zero must stay zero: other entries are stored plus kLift.
/// Subtracting the scale's power, kLift minus its exponent, saturates at 0 for the entry 0.
template <FloatFormat F, class T>
struct PowerTable {
  /// Returns the code of T for a code of F.
  static constexpr std::uint32_t CodeIn(std::uint32_t code) {
    return Encode<T, Overflow::kInfinity>(narrowfloat::Decode<F>(code));
  }
  static constexpr std::uint32_t kLift = T::kMaxCode - CodeIn(F::kMaxCode) + 1u;
  // Bounds of the added exponent: the smallest code stays normal, the largest stays finite.
  static constexpr bool kRegular = CodeIn(1) >= 1u << T::kMantissaBits;
  static constexpr std::uint32_t kDown = (CodeIn(1) >> T::kMantissaBits) - 1u;
  static constexpr std::uint32_t kUp = (T::kMaxCode - CodeIn(F::kMaxCode)) >> T::kMantissaBits;
  static constexpr std::uint32_t kSmallestScale = (127u - kDown) << 23;
  static constexpr std::uint32_t kLargestScale = (127u + kUp) << 23;
  /// Returns a table whose entries 1 to `last` are T's codes of the values of F's codes, plus
  /// kLift; the other entries are 0.
  template <class Table>
  static constexpr Table Lifted(std::uint32_t last) {
    Table table;
    for (std::uint32_t i = 1; i <= last; ++i) {
      table.low[i] = static_cast<std::uint8_t>(CodeIn(i) + kLift);
      table.high[i] = static_cast<std::uint8_t>((CodeIn(i) + kLift) >> 8);
    }
    return table;
  }
#if HWY_TARGET == HWY_AVX3_DL
  static constexpr auto kMagnitudes = Lifted<MagnitudeTable>(F::kMaxCode);
#else
  static constexpr auto kTable = Lifted<CodeTable<F, T> >(CodeTable<F, T>::kEntries - 1);
#endif

  /// Implements FactorsFn.
  static HWY_INLINE bool Powers(const float* scales, std::size_t count,
                                std::uint16_t* powers) noexcept {
    NF_DCHECK(count <= cpu::kDecodeCols);
    if constexpr (!kRegular) return false;
    std::uint32_t slow = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(scales[i]);
      const bool is_outside = bits - kSmallestScale > kLargestScale - kSmallestScale;
      slow |= (bits & 0x7FFFFFu) | static_cast<std::uint32_t>(is_outside);
      powers[i] = static_cast<std::uint16_t>(kLift - (((bits >> 23) - 127u) << T::kMantissaBits));
    }
    return slow == 0;
  }

  /// Implements StoredFactorsFn. 7 ops for Lanes(D16()) scales.
  static bool PowersOfE8M0(const std::byte* stored, std::size_t count,
                           std::uint16_t* powers) noexcept requires kRegular {
    NF_DCHECK(count <= cpu::kDecodeCols);
    const D16 d16;
    const hn::Half<D8> d8;
    constexpr auto kSmallest = static_cast<std::uint16_t>(kSmallestScale >> 23);
    const auto smallest = hn::Set(d16, kSmallest);
    const auto span = hn::Set(d16, std::uint16_t{kDown + kUp});
    const auto lift = hn::Set(d16, static_cast<std::uint16_t>(kLift + (kDown << T::kMantissaBits)));
    auto outside = hn::Zero(d16);
    const auto store = [&](const std::uint8_t* codes, std::size_t i) NF_INLINE_ATTR {
      // Smaller scales wrap around, and are then outside, too.
      const auto above = hn::Sub(hn::PromoteTo(d16, hn::LoadU(d8, codes)), smallest);
      outside = hn::Or(outside, hn::SaturatedSub(above, span));
      hn::StoreU(hn::Sub(lift, hn::ShiftLeft<T::kMantissaBits>(above)), d16, powers + i);
    };
    const std::size_t lanes = hn::Lanes(d16);
    std::size_t i = 0;
    for (; i + lanes <= count; i += lanes) store(Bytes(stored) + i, i);
    if (i < count) {
      alignas(64) std::uint8_t last[hn::MaxLanes(D16())];
      std::fill_n(last, lanes, static_cast<std::uint8_t>(kSmallest));
      std::memcpy(last, stored + i, count - i);
      store(last, i);
    }
    return hn::AllTrue(d16, hn::Eq(outside, hn::Zero(d16)));
  }

  /// Returns the scales that Lanes(DF()) powers were computed from. 5 ops.
  static HWY_INLINE hn::Vec<DF> ScalesOf(const std::uint16_t* powers) {
    const hn::RebindToSigned<D32> di;
    const hn::Rebind<std::int16_t, DF> di16;
    const hn::RebindToUnsigned<decltype(di16)> du16;
    const auto lift = hn::Set(du16, static_cast<std::uint16_t>(kLift));
    const auto exponent =
        hn::PromoteTo(di, hn::BitCast(di16, hn::Sub(lift, hn::LoadU(du16, powers))));
    const auto one = hn::BitCast(di, hn::Set(DF(), 1.0f));
    return hn::BitCast(DF(), hn::Add(one, hn::ShiftLeft<23 - T::kMantissaBits>(exponent)));
  }

  /// Decodes as DecodeByTable does; power_at(i) returns the powers of Lanes(D16()) items from i on.
  template <class PowerAt>
  static HWY_INLINE bool Decode(const std::byte* codes, std::size_t count, const VectorWriter& out,
                                const PowerAt& power_at) {
    const auto finish = [&](auto magnitude, std::size_t i)
                            NF_INLINE_ATTR { return hn::SaturatedSub(magnitude, power_at(i)); };
#if HWY_TARGET == HWY_AVX3_DL
    return DecodeByMagnitude<F, T>(kMagnitudes, codes, count, out, finish);
#else
    return DecodeByTable<F, T>(kTable, codes, count, out, finish);
#endif
  }
};

/// Decodes 8-bit codes to 16-bit items by tables. Returns false if the tables do not support a
/// scale or a code: the items are then undefined.
template <FloatFormat F, class T>
HWY_INLINE bool DecodeBlocksByTables(const std::byte* codes, std::size_t count, const float* scales,
                                     int shift, const VectorWriter& out) {
  std::uint16_t powers[cpu::kDecodeRun / kMxBlock] = {};
  const std::size_t block = std::size_t{1} << shift, blocks = ((count - 1) >> shift) + 1;
  if (PowerTable<F, T>::Powers(scales, blocks, powers)) {
    return PowerTable<F, T>::Decode(codes, count, out, [&](std::size_t i) NF_INLINE_ATTR {
      return hn::Set(D16(), powers[i >> shift]);
    });
  }
  if (block < 64) return false;  // short blocks are not worth a table each
  for (std::size_t i = 0; i < count; i += block, ++scales) {
    if (!HasUniformTable<F, T>(*scales) ||
        !DecodeByUniformTable<F, T>(UniformTable<F, T>(*scales), codes + i,
                                    std::min(block, count - i), out.From(i * kItemSize<T>)))
      return false;
  }
  return true;
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
