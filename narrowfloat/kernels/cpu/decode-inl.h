// SPDX-License-Identifier: Apache-2.0
// Decodes codes to items: all codes and scales through fp32, finite ones through tables. Compiled
// once per instruction set.
#if defined(NARROWFLOAT_KERNELS_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_DECODE_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_DECODE_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_DECODE_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kMaxRun =
    2 * HWY_MAX_BYTES / sizeof(float);  // items of one step: two vectors of fp32

constexpr float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23);
}

#if HWY_TARGET <= HWY_AVX2

/// Decodes two vectors of values. A code's bits, shifted to where float16 has its exponent and
/// mantissa, are the value times 2^(bias-15), which the processor widens exactly, subnormals
/// included. 11 ops.
template <FloatFormat F>
HWY_INLINE void DecodeCodes(const std::uint8_t* codes, hn::Vec<DF>& low, hn::Vec<DF>& high) {
  const DF df;
  const hn::Repartition<std::uint16_t, DF> d16;
  const hn::RebindToSigned<decltype(d16)> di;
  const hn::Half<decltype(d16)> dh;
  const hn::Rebind<hwy::float16_t, decltype(dh)> df16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  constexpr int kShorter = Float16::kExponentBits - F::kExponentBits;
  auto half = hn::ShiftLeft<kCodeShift<F> >(hn::PromoteTo(d16, hn::LoadU(d8, codes)));
  if constexpr (kShorter > 0) {
    // Shifting the sign in keeps it at the top; its copies below are cleared.
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

/// Decodes a vector of values. The bits of a code, shifted to where binary32 has its exponent and
/// mantissa, are the value times 2^(bias-127), subnormals included; the product is exact. 9 ops.
template <FloatFormat F>
HWY_INLINE hn::Vec<DF> DecodeVector(const std::uint8_t* codes) {
  const DF df;
  const D32 d32;
  const hn::Rebind<std::uint8_t, DF> d8;
  const auto items = hn::PromoteTo(d32, hn::LoadU(d8, codes));
  const auto magnitude = hn::And(items, hn::Set(d32, kSignCode<F> - 1u));
  const auto sign = hn::ShiftLeft<32 - kBits<F> >(hn::Xor(items, magnitude));
  const auto moved = hn::BitCast(df, hn::ShiftLeft<23 - F::kMantissaBits>(magnitude));
  auto value = hn::BitCast(d32, hn::Mul(moved, hn::Set(df, PowerOfTwo(127 - F::kBias))));
  if constexpr (F::kMaxCode < kSignCode<F> - 1u) {
    const auto infinite = hn::Eq(magnitude, hn::Set(d32, F::kMaxCode + 1u));
    const auto special = F::kHasInfinity ? hn::IfThenElse(infinite, hn::Set(d32, kFloatInfinity),
                                                          hn::Set(d32, kFloatNan))
                                         : hn::Set(d32, kFloatNan);
    value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, F::kMaxCode)), special, value);
  }
  return hn::BitCast(df, hn::Or(value, sign));
}

template <FloatFormat F>
HWY_INLINE void DecodeCodes(const std::uint8_t* codes, hn::Vec<DF>& low, hn::Vec<DF>& high) {
  low = DecodeVector<F>(codes);
  high = DecodeVector<F>(codes + hn::Lanes(DF()));
}

#endif

/// Returns value * scale_inv; every NaN becomes the one quiet NaN.
HWY_INLINE hn::Vec<DF> Scaled(hn::Vec<DF> value, hn::Vec<DF> scale_inv) {
  const DF df;
  const auto product = hn::Mul(value, scale_inv);
  return hn::IfThenElse(hn::Eq(product, product), product,
                        hn::BitCast(df, hn::Set(D32(), kFloatNan)));
}

/// Rounds canonical values to T.
template <class T>
HWY_INLINE hn::Vec<hn::Repartition<std::uint16_t, DF> > RoundTo(hn::Vec<DF> low, hn::Vec<DF> high) {
  [[maybe_unused]] const DF df;
  const D32 d32;
  const hn::Repartition<std::uint16_t, DF> d16;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto rounded = [&](hn::Vec<DF> value) NF_INLINE_ATTR {
      return hn::BitCast(d16, RoundToBFloat16(hn::BitCast(d32, value)));
    };
    return hn::ConcatOdd(d16, rounded(high), rounded(low));
  } else {
#if HWY_TARGET <= HWY_AVX2
    // The processor rounds to nearest-even, whatever the caller's mode, and keeps subnormals; the
    // one quiet NaN stays one.
    const hn::Rebind<hwy::float16_t, DF> df16;
    const hn::Half<decltype(d16)> dh;
    return hn::Combine(d16, hn::BitCast(dh, hn::DemoteTo(df16, high)),
                       hn::BitCast(dh, hn::DemoteTo(df16, low)));
#else
    // Limits to twice the largest power of two, whose code is infinity's.
    const auto rounded = [&](hn::Vec<DF> value) NF_INLINE_ATTR {
      const auto bits = hn::BitCast(d32, value);
      const auto magnitude = hn::And(bits, hn::Set(d32, ~kFloatSign));
      const auto sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
      const auto code = EncodeMagnitudes<T, 0>(
          df, hn::Min(hn::BitCast(df, magnitude), hn::Set(df, PowerOfTwo(T::kBias + 1))));
      return hn::BitCast(d16, hn::IfThenElse(hn::Eq(bits, hn::Set(d32, kFloatNan)),
                                             hn::Set(d32, T::kNanCode), hn::Or(code, sign)));
    };
    return hn::ConcatEven(d16, rounded(high), rounded(low));
#endif
  }
}

/// Decodes two fp32 vectors of items, for all codes and scales.
template <FloatFormat F, class T, class Scale>
HWY_INLINE void DecodeAny(const std::uint8_t* codes, const Scale& scale, const VectorWriter& out) {
  const DF df;
  hn::Vec<DF> low, high;
  DecodeCodes<F>(codes, low, high);
  low = Scaled(low, scale(0));
  high = Scaled(high, scale(1));
  if constexpr (kItemSize<T> == 4) {
    out.Put(df, low, 0);
    out.Put(df, high, hn::Lanes(df) * sizeof(float));
  } else {
    const hn::Repartition<std::uint16_t, DF> d16;
    out.Put(d16, RoundTo<T>(low, high), 0);
  }
}

/// Decodes `count` items. scale_at(i) returns the scales from item i on: LaneScales or
/// UniformScale.
template <FloatFormat F, class T, class ScaleAt>
HWY_NOINLINE void DecodeAnyRow(const std::byte* in, std::size_t count, const ScaleAt& scale_at,
                               const VectorWriter& out) {
  const std::size_t run = 2 * hn::Lanes(DF());
  const auto* codes = reinterpret_cast<const std::uint8_t*>(in);
  std::size_t i = 0;
  for (; i + run <= count; i += run) {
    DecodeAny<F, T>(codes + i, scale_at(i), out.From(i * kItemSize<T>));
  }
  if (i == count) return;
  alignas(64) std::uint8_t staged[kMaxRun] = {};
  alignas(64) std::byte items[kMaxRun * kItemSize<T>];
  std::memcpy(staged, codes + i, count - i);
  DecodeAny<F, T>(staged, scale_at(i), WriterAt(D8(), items, false));
  std::memcpy(out.to + i * kItemSize<T>, items, (count - i) * kItemSize<T>);
}

template <FloatFormat F, class T>
HWY_INLINE void DecodeAnyRow(const std::byte* in, std::size_t count, float scale,
                             const VectorWriter& out) {
  const UniformScale<DF> uniform{hn::Set(DF(), scale)};
  DecodeAnyRow<F, T>(
      in, count, [uniform](std::size_t) NF_INLINE_ATTR { return uniform; }, out);
}

/// Permutes 8-byte units so that a following InterleaveLower and InterleaveUpper, which work within
/// 128-bit blocks, yield memory order.
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
  const hn::Repartition<std::uint16_t, D8> d16;
  const auto nibble = hn::Set(d8, std::uint8_t{0xF});
  auto* to = reinterpret_cast<std::uint8_t*>(codes);
  std::size_t i = 0;
  for (; i + 2 * hn::Lanes(d8) <= count; i += 2 * hn::Lanes(d8)) {
    const auto bytes =
        InterleavingOrder(hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(packed + i / 2)));
    const auto first = hn::And(bytes, nibble);
    const auto second =
        hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), nibble);
    hn::StoreU(hn::InterleaveLower(d8, first, second), d8, to + i);
    hn::StoreU(hn::InterleaveUpper(d8, first, second), d8, to + i + hn::Lanes(d8));
  }
  for (; i < count; ++i) {
    to[i] = static_cast<std::uint8_t>(static_cast<unsigned>(packed[i / 2]) >> (i % 2 * 4) & 0xFu);
  }
}

/// Extracts the second (or the first) code of each of `count` bytes. Writes whole vectors.
HWY_INLINE void SplitCodes(const std::byte* packed, std::size_t count, bool second,
                           std::byte* codes) {
  const D8 d8;
  const hn::Repartition<std::uint16_t, D8> d16;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d8)) {
    const auto bytes = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(packed + i));
    const auto shifted = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes)));
    hn::StoreU(hn::And(second ? shifted : bytes, hn::Set(d8, std::uint8_t{0xF})), d8,
               reinterpret_cast<std::uint8_t*>(codes + i));
  }
}

/// Table that decodes 8-bit codes to 16-bit items. The index is the code's magnitude if that is
/// below 2^(M+1), else its mantissa with exponent 1; the remaining exponent is added to the
/// exponent field of the entry. This is exact for all codes if it is so for the smallest normal one
/// and the largest.
template <FloatFormat F, class T>
struct DecodeTable16 {
  static_assert(kBits<F> == 8 && kItemSize<T> == 2);
  static constexpr std::size_t kEntries = std::size_t{2} << F::kMantissaBits;
  static constexpr std::uint32_t kSmallestNormal = 1u << F::kMantissaBits;

  alignas(16) std::uint8_t low[16] = {};
  alignas(16) std::uint8_t high[16] = {};

  void SetEntry(std::size_t index, std::uint32_t bits) {
    low[index] = static_cast<std::uint8_t>(bits);
    high[index] = static_cast<std::uint8_t>(bits >> 8);
  }

  struct Run {
    hn::Vec<D16> magnitude[2];
    hn::Vec<D16> sign[2];
  };

  /// The table in registers, which stores of items cannot alias.
  struct Loaded {
    hn::Vec<D8> low, high;
  };
  HWY_INLINE Loaded Load() const { return {hn::LoadDup128(D8(), low), hn::LoadDup128(D8(), high)}; }

  /// Decodes Lanes(D8) codes to two vectors. `largest` collects the largest magnitudes of codes.
  static HWY_INLINE Run Decode(const Loaded& table, const std::uint8_t* in, hn::Vec<D8>& largest) {
    const D8 d8;
    const D16 d16;
    const auto set = [&](std::uint32_t value)
                         NF_INLINE_ATTR { return hn::Set(d8, static_cast<std::uint8_t>(value)); };
    const auto codes = InterleavingOrder(hn::LoadU(d8, in));
    const auto magnitude = hn::And(codes, set(kSignCode<F> - 1u));
    largest = hn::Max(largest, magnitude);
    const auto mantissa = hn::And(codes, set(kSmallestNormal - 1u));
    const auto index = hn::Min(magnitude, hn::Or(mantissa, set(kSmallestNormal)));
    const auto exponent = hn::Sub(magnitude, index);
    const auto entry_low = hn::TableLookupBytes(table.low, index);
    const auto entry_high = hn::TableLookupBytes(table.high, index);
    const auto sign = hn::Xor(codes, magnitude);
    const auto zero = hn::Zero(d8);
    constexpr int kShift = T::kMantissaBits - F::kMantissaBits;
    const auto lower = [&](auto a, auto b) NF_INLINE_ATTR {
      return hn::BitCast(d16, hn::InterleaveLower(d8, a, b));
    };
    const auto upper = [&](auto a, auto b) NF_INLINE_ATTR {
      return hn::BitCast(d16, hn::InterleaveUpper(d8, a, b));
    };
    return {{hn::Add(lower(entry_low, entry_high), hn::ShiftLeft<kShift>(lower(exponent, zero))),
             hn::Add(upper(entry_low, entry_high), hn::ShiftLeft<kShift>(upper(exponent, zero)))},
            {lower(zero, sign), upper(zero, sign)}};
  }
};

/// Decodes `count` codes with run(codes, i, items, largest), Lanes(D8) at a time. Returns false if
/// a code is NaN or infinite: the items are then wrong.
template <FloatFormat F, class T, class DecodeRun>
HWY_INLINE bool DecodeNumbers(const std::byte* in, std::size_t count, const VectorWriter& out,
                              const DecodeRun& run) {
  const D8 d8;
  const std::size_t lanes = hn::Lanes(d8);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(in);
  auto largest = hn::Zero(d8);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) run(codes + i, i, out.From(i * kItemSize<T>), largest);
  if (i < count) {
    alignas(64) std::uint8_t staged[HWY_MAX_BYTES] = {};
    alignas(64) std::byte items[HWY_MAX_BYTES * kItemSize<T>];
    std::memcpy(staged, codes + i, count - i);
    run(staged, i, WriterAt(d8, items, false), largest);
    std::memcpy(out.to + i * kItemSize<T>, items, (count - i) * kItemSize<T>);
  }
  const auto special = hn::Gt(largest, hn::Set(d8, static_cast<std::uint8_t>(F::kMaxCode)));
  return hn::AllFalse(d8, special);
}

/// Decodes codes under one scale to 16-bit items.
template <FloatFormat F, class T>
class UniformDecoder16 {
 public:
  using Table = DecodeTable16<F, T>;

  explicit UniformDecoder16(float scale) {
    // From one binade above T's subnormals on, products round alike in every binade.
    constexpr float kSmallest = narrowfloat::Decode<F>(Table::kSmallestNormal);
    constexpr float kBound = narrowfloat::Decode<T>(2u << T::kMantissaBits);
    regular_ = scale > 0.0f && kSmallest * scale >= kBound &&
               kMaxValue<F> * scale <= narrowfloat::Decode<T>(T::kMaxCode);
    if (regular_) Fill(scale);
  }

  /// Returns false if the table does not serve the scale or a code; the items are then undefined.
  HWY_INLINE bool Decode(const std::byte* codes, std::size_t count, const VectorWriter& out) const {
    if (!regular_) return false;
    const auto table = table_.Load();
    return DecodeNumbers<F, T>(
        codes, count, out,
        [&](const std::uint8_t* in, std::size_t, const VectorWriter& items, hn::Vec<D8>& largest)
            NF_INLINE_ATTR {
              const D16 d16;
              const auto run = Table::Decode(table, in, largest);
              items.Put(d16, hn::Or(run.magnitude[0], run.sign[0]), 0);
              items.Put(d16, hn::Or(run.magnitude[1], run.sign[1]), hn::Lanes(d16) * kItemSize<T>);
            });
  }

 private:
  /// Stores the products of a scale and the entries' values, rounded to T.
  HWY_INLINE void Fill(float scale) {
    constexpr std::size_t kPlaces = std::max<std::size_t>(16, kMaxRun);
    alignas(64) static constexpr auto kValues = [] {
      std::array<float, kPlaces> values{};
      for (std::uint32_t i = 0; i < Table::kEntries; ++i) values[i] = narrowfloat::Decode<F>(i);
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
    const hn::Full128<std::uint8_t> d8;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(products);
    const auto first = hn::Load(d8, bytes), second = hn::Load(d8, bytes + 16);
    hn::Store(hn::ConcatEven(d8, second, first), d8, table_.low);
    hn::Store(hn::ConcatOdd(d8, second, first), d8, table_.high);
  }

  bool regular_;
  Table table_;
};

#if HWY_TARGET <= HWY_AVX3

/// Decodes two blocks of 16 packed E2M1 codes to bfloat16. 18 ops for 32 items.
/// Requires: finite scales. Multiplies and rounds the 8 magnitudes once per block, and looks the
/// items up in the products. The sign bit of a code is the sign bit of its item.
/// Worked example: byte 0xB2 holds code 2 (1.0), then code 0xB (-1.5). Under scale 3 the products
/// of magnitudes 2 and 3 are 3.0 (0x4040) and 4.5 (0x4090), so the items are 0x4040 and 0xC090.
HWY_INLINE hn::Vec512<std::uint16_t> DecodeTwoBlocks(const std::uint8_t* packed,
                                                     const float* scales) {
  const hn::Full512<float> df;
  const hn::Full512<std::uint32_t> d32;
  const hn::Full512<std::uint16_t> d16;
  constexpr std::size_t kMagnitudes = kSignCode<E2M1>;
  alignas(64) static constexpr auto kValues = [] {
    std::array<float, 2 * kMagnitudes> values{};
    for (std::uint32_t i = 0; i < values.size(); ++i) values[i] = Decode<E2M1>(i % kMagnitudes);
    return values;
  }();
  // The bfloat16 of 8 + 8 magnitudes, in the upper 16 bits of each lane.
  const auto table = RoundToBFloat16(
      hn::BitCast(d32, hn::Mul(hn::Load(df, kValues.data()), SpreadScales<8>(df, scales, 0))));
  // Moves each of a byte's two codes to bits 1 to 4 of a 16-bit lane. Other bits are undefined.
  const auto bytes = hn::PromoteTo(d32, hn::LoadU(hn::Full128<std::uint8_t>(), packed));
  const auto codes = hn::BitCast(d16, hn::Or(hn::ShiftLeft<1>(bytes), hn::ShiftLeft<13>(bytes)));
  // The table's 16-bit lanes 1, 3, ..., 15 hold the first block's products, 17 to 31 the second's.
  alignas(64) static constexpr auto kFirstEntry = [] {
    std::array<std::uint16_t, 32> entry{};
    for (std::size_t i = 0; i < entry.size(); ++i) entry[i] = i < 16 ? 1 : 17;
    return entry;
  }();
  const auto magnitude = hn::And(codes, hn::Set(d16, std::uint16_t{0xE}));
  const auto index = hn::Or(magnitude, hn::Load(d16, kFirstEntry.data()));
  const hn::Vec512<std::uint16_t> items{_mm512_permutexvar_epi16(index.raw, table.raw)};
  const auto sign = hn::And(hn::ShiftLeft<11>(codes), hn::Set(d16, std::uint16_t{0x8000}));
  return hn::Xor(items, sign);
}

#endif

/// Returns the code of T for a code of F.
template <FloatFormat F, class T>
constexpr std::uint32_t CodeIn(std::uint32_t code) {
  return Encode<T, Overflow::kInfinity>(Decode<F>(code));
}

/// Decodes codes under power-of-two scales whose products are normal numbers of T: adds the scale's
/// exponent to that of the entry. Zero must stay zero: nonzero entries are stored plus kLift, and
/// subtracting kLift minus the exponent saturates at 0 for the zero entry.
template <FloatFormat F, class T>
class PowerOfTwoDecoder16 {
 public:
  using Table = DecodeTable16<F, T>;

  PowerOfTwoDecoder16() {
    for (std::uint32_t i = 1; i < Table::kEntries; ++i) table_.SetEntry(i, CodeIn<F, T>(i) + kLift);
  }

  /// Returns 0 if Decode serves this scale.
  static HWY_INLINE std::uint32_t NeedsSlowPath(float scale) {
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    return (bits & 0x7FFFFFu) | static_cast<std::uint32_t>(!kRegular) |
           static_cast<std::uint32_t>(bits < kSmallestScale) |
           static_cast<std::uint32_t>(bits > kLargestScale);
  }
  /// Returns what Decode subtracts for a scale. Requires: NeedsSlowPath(scale) is 0.
  static HWY_INLINE std::uint16_t Power(float scale) {
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    return static_cast<std::uint16_t>(kLift - (((bits >> 23) - 127u) << T::kMantissaBits));
  }

  /// Decodes with power_at(i), the Power of the items from i on. Returns false if a code is NaN or
  /// infinite; the items are then undefined.
  template <class PowerAt>
  HWY_INLINE bool Decode(const std::byte* codes, std::size_t count, const PowerAt& power_at,
                         const VectorWriter& out) const {
    const auto table = table_.Load();
    return DecodeNumbers<F, T>(
        codes, count, out,
        [&](const std::uint8_t* in, std::size_t i, const VectorWriter& items, hn::Vec<D8>& largest)
            NF_INLINE_ATTR {
              const D16 d16;
              const auto run = Table::Decode(table, in, largest);
              const auto item = [&](std::size_t k) NF_INLINE_ATTR {
                return hn::Or(hn::SaturatedSub(run.magnitude[k], power_at(i + k * hn::Lanes(d16))),
                              run.sign[k]);
              };
              items.Put(d16, item(0), 0);
              items.Put(d16, item(1), hn::Lanes(d16) * kItemSize<T>);
            });
  }

 private:
  static constexpr std::uint32_t kLift = T::kMaxCode - CodeIn<F, T>(F::kMaxCode) + 1u;
  // Bounds of the added exponent: the smallest code stays normal, the largest stays finite.
  static constexpr bool kRegular = CodeIn<F, T>(1) >= 1u << T::kMantissaBits;
  static constexpr std::uint32_t kDown = (CodeIn<F, T>(1) >> T::kMantissaBits) - 1u;
  static constexpr std::uint32_t kUp =
      (T::kMaxCode - CodeIn<F, T>(F::kMaxCode)) >> T::kMantissaBits;
  static constexpr std::uint32_t kSmallestScale = (127u - kDown) << 23;
  static constexpr std::uint32_t kLargestScale = (127u + kUp) << 23;

  Table table_;
};

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
