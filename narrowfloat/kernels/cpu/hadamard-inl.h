// SPDX-License-Identifier: Apache-2.0
// The random Hadamard transform of groups of 16 rows. Compiled once per instruction set.
#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/decode-inl.h"
#include "narrowfloat/kernels/cpu/float_flags.h"
#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"
#include "narrowfloat/kernels/dcheck.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

/// Returns a + b; FusedSub returns a - b. Both multiply b by 1 in the same instruction, if there is
/// one: AMD's processors execute it on other units than additions.
template <class V>
HWY_INLINE V FusedAdd(V a, V b) {
  if constexpr (HWY_NATIVE_FMA) return hn::MulAdd(b, Opaque(hn::Set(hn::DFromV<V>(), 1)), a);
  return hn::Add(a, b);
}
template <class V>
HWY_INLINE V FusedSub(V a, V b) {
  if constexpr (HWY_NATIVE_FMA) return hn::NegMulAdd(b, Opaque(hn::Set(hn::DFromV<V>(), 1)), a);
  return hn::Sub(a, b);
}

// A sum of 16 numbers below 2^(e+1) is below 2^(e+5) and a multiple of the smallest one's last bit.
// Spread: the largest difference of the exponents with which it is exact in `digits` bits.
constexpr int kGrowth = 5;
template <class T>
constexpr int Spread(int digits) {
  if constexpr (kItemSize<T> == 4) return digits - kGrowth - 23;
  if constexpr (kItemSize<T> == 2) return digits - kGrowth - T::kMantissaBits;
}
constexpr std::uint32_t kLargestField = 254 - kGrowth;  // of items whose sums are finite

/// Rounds two vectors of fp32 values to bfloat16, to nearest even, as the even and the odd lanes.
/// Rounds up if the lower half is above 0x8000, after the upper half's last bit was ORed into it:
/// the tie 0x3F818000 becomes 0x3F82. Requires: no NaN. 9 ops for twice the lanes.
HWY_INLINE hn::Vec<D16> InterleaveAsBFloat16(hn::Vec<DF> even, hn::Vec<DF> odd) {
  const D16 d16;
  const D32 d32;
  const auto even_bits = hn::BitCast(d32, even), odd_bits = hn::BitCast(d32, odd);
  const auto upper =
      hn::OddEven(hn::BitCast(d16, odd_bits), hn::BitCast(d16, hn::ShiftRight<16>(even_bits)));
  const auto lower =
      hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd_bits)), hn::BitCast(d16, even_bits));
  const auto one = hn::Set(d16, std::uint16_t{1});
  const auto sticky = hn::Or(lower, hn::And(upper, one));
  return hn::Add(upper, hn::ShiftRight<15>(hn::SaturatedSub(sticky, one)));
}

/// Sums of bfloat16 in fp32: of the even columns of a vector, and of the odd columns.
struct FusedSums {
  // kTiny: a column with nonzero magnitudes below it may need binary64. kFlags: the processor's
  // flags of such a column, and of inexact sums.
  static constexpr std::uint16_t kTiny = 0;
  static constexpr auto kFlags = cpu::FloatFlags::kInexact;

  /// Widens the even columns, or with kSecond the odd columns. 1 op.
  template <bool kSecond>
  static HWY_INLINE hn::Vec<DF> Widen(hn::Vec<D16> items) {
    const auto pairs = hn::BitCast(D32(), items);
    if constexpr (kSecond) return WidenOdd<BFloat16, Inputs::kFinite>(pairs);
    return WidenEven<BFloat16, Inputs::kFinite>(pairs);
  }
  static HWY_INLINE hn::Vec<D16> Round(hn::Vec<DF> even, hn::Vec<DF> odd) {
    return InterleaveAsBFloat16(even, odd);
  }
};

#if HWY_TARGET == HWY_AVX3_DL
/// Sums of the lower half of a vector's columns and of the upper half, rounded by the instruction
/// of AVX512_BF16, for which Highway 1.0.3 has no function.
struct BFloat16Sums {
  // The instruction returns zeros for subnormal numbers. Products of the scale and magnitudes of
  // kTiny or more are multiples of 2^-126, the smallest normal number.
  static_assert(kHadamardScale == 0.25);
  static constexpr std::uint16_t kTiny = (1 + BFloat16::kMantissaBits + 2)
                                         << BFloat16::kMantissaBits;
  // Every output is an operand of LargerMagnitude, so that a subnormal one always sets a flag.
  static constexpr auto kFlags = cpu::FloatFlags::kInexact | cpu::FloatFlags::kSubnormalOperand;

  static bool AreAvailable() {
    static const bool are = __builtin_cpu_supports("avx512bf16") != 0;
    return are;
  }
  /// Widens the lower half of the columns, or with kSecond the upper half. 1 op.
  template <bool kSecond>
  static HWY_INLINE hn::Vec<DF> Widen(hn::Vec<D16> items) {
    alignas(64) static constexpr auto kFrom = [] {
      std::array<std::uint16_t, 32> from{};
      for (std::size_t i = 0; i < 32; ++i)
        from[i] = static_cast<std::uint16_t>(i / 2 + (kSecond ? 16 : 0));
      return from;
    }();
    const auto from = hn::Load(D16(), kFrom.data());
    return hn::Vec<DF>{
        _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, from.raw, items.raw))};
  }
  /// Rounds both halves of the columns and joins them. 1 op.
  static HWY_INLINE hn::Vec<D16> Round(hn::Vec<DF> lower, hn::Vec<DF> upper) {
    hn::Vec<D16> rounded;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded.raw) : "v"(lower.raw), "v"(upper.raw));
    return rounded;
  }
  /// Returns the larger magnitude. If one operand is NaN, returns the other one's. 1 op.
  static HWY_INLINE hn::Vec<DF> LargerMagnitude(hn::Vec<DF> a, hn::Vec<DF> b) {
    constexpr int kLargerMagnitude = 3, kWithoutSign = 2 << 2;
    return hn::Vec<DF>{_mm512_range_ps(a.raw, b.raw, kLargerMagnitude | kWithoutSign)};
  }
};
#endif

/// Sets two vectors to their sum and their difference. 2 ops.
template <bool kFused, class V>
HWY_INLINE void Hadamard2(V& a, V& b) {
  const auto first = a, second = b;
  if constexpr (kFused) {
    a = FusedAdd(first, second);
    b = FusedSub(first, second);
  } else {
    a = hn::Add(first, second);
    b = hn::Sub(first, second);
  }
}

/// Multiplies 8 vectors by Sylvester's matrix, and passes the products to done(...) in the order of
/// rows. two(k, sum, difference) sets the sum and the difference of the vectors k and k + 1. 16
/// ops, and 4 calls of `two`.
template <class D, class Two, class Done>
HWY_INLINE void Hadamard8(D df, const Two& two, const Done& done) {
  auto a = hn::Zero(df), b = a, c = a, d = a, e = a, f = a, g = a, h = a;
  two(0, a, b);
  two(2, c, d);
  two(4, e, f);
  two(6, g, h);
  Hadamard2<false>(a, c);
  Hadamard2<false>(b, d);
  Hadamard2<false>(e, g);
  Hadamard2<false>(f, h);
  Hadamard2<true>(a, e);
  Hadamard2<false>(b, f);
  Hadamard2<false>(c, g);
  Hadamard2<false>(d, h);
  done(a, b, c, d, e, f, g, h);
}

/// Transforms a vector of columns of bfloat16, from `col` on, in fp32. `factors` are the scale with
/// the signs of the rows; products with them are exact. Returns the largest magnitudes of the
/// columns' outputs. An infinite or NaN item leaves no output of its column finite; a NaN makes all
/// of them NaN. 226 ops by BFloat16Sums, about 360 by FusedSums.
template <class Sums>
HWY_INLINE hn::Vec<D16> TransformRun(const cpu::TransformRows& rows, std::size_t col,
                                     const float* factors) {
  const D16 d16;
  const DF df;
  const std::size_t from = col * kItemSize<BFloat16>;
  constexpr std::size_t kLanes = hn::MaxLanes(df), kHalf = kHadamardSize / 2;
  // True if the amaxes are those of the fp32 sums, which are rounded at the end.
  constexpr bool kMeasuresSums = requires(hn::Vec<DF> sums) {
    Sums::LargerMagnitude(sums, sums);
  };
  alignas(64) float of_first[2][kHalf * kLanes];  // products of the first 8 rows, half by half
  auto largest = hn::Zero(d16);
  auto largest_first = hn::Zero(df), largest_second = largest_first;

  const auto transform = [&]<bool kSecond>(std::size_t row, const auto& done) NF_INLINE_ATTR {
    Hadamard8(
        df,
        [&](std::size_t k, hn::Vec<DF>& sum, hn::Vec<DF>& difference) NF_INLINE_ATTR {
          const std::size_t r = row + k;
          const auto items = LoadItems(d16, rows.in[r] + from);
          const auto next = LoadItems(d16, rows.in[r + 1] + from);
          if constexpr (!kSecond) {
            PrefetchBytes(rows.next[r] + from, hn::Lanes(d16) * kItemSize<BFloat16>);
            PrefetchBytes(rows.next[r + 1] + from, hn::Lanes(d16) * kItemSize<BFloat16>);
          }
          // Adding zero turns -0 into +0, so that a sum of zeros is +0.
          const auto first = hn::MulAdd(Sums::template Widen<kSecond>(items),
                                        hn::Set(df, factors[r]), hn::Zero(df));
          const auto second = Sums::template Widen<kSecond>(next);
          const auto factor = hn::Set(df, factors[r + 1]);
          sum = hn::MulAdd(second, factor, first);
          difference = hn::NegMulAdd(second, factor, first);
        },
        done);
  };
  const auto store_first = [&](std::size_t half) NF_INLINE_ATTR {
    return [&, half](auto... products) NF_INLINE_ATTR {
      float* to = of_first[half];
      ((hn::Store(products, df, to), to += hn::Lanes(df)), ...);
    };
  };
  transform.template operator()<false>(0, store_first(0));
  transform.template operator()<true>(0, store_first(1));
  const auto finish = [&](std::size_t j, hn::Vec<DF> first, hn::Vec<DF> second) NF_INLINE_ATTR {
    auto upper_first = hn::Load(df, of_first[0] + j * hn::Lanes(df));
    auto upper_second = hn::Load(df, of_first[1] + j * hn::Lanes(df));
    Hadamard2<true>(upper_first, first);
    Hadamard2<true>(upper_second, second);
    const auto put = [&](std::size_t row, hn::Vec<DF> output_first,
                         hn::Vec<DF> output_second) NF_INLINE_ATTR {
      const auto output = Sums::Round(output_first, output_second);
      hn::StoreU(output, d16, reinterpret_cast<std::uint16_t*>(rows.out[row] + from));
      if constexpr (kMeasuresSums) {
        const bool is_first = row == 0;  // LargerMagnitude of a NaN and itself keeps it
        largest_first =
            Sums::LargerMagnitude(is_first ? output_first : largest_first, output_first);
        largest_second =
            Sums::LargerMagnitude(is_first ? output_second : largest_second, output_second);
      } else {
        largest = hn::Max(largest, hn::And(output, hn::Set(d16, std::uint16_t{0x7FFF})));
      }
    };
    put(j, upper_first, upper_second);
    put(j + kHalf, first, second);
  };
  transform.template operator()<false>(kHalf, [&](auto... first) NF_INLINE_ATTR {
    transform.template operator()<true>(kHalf, [&](auto... second) NF_INLINE_ATTR {
      std::size_t j = 0;
      (finish(j++, first, second), ...);
    });
  });
  if constexpr (kMeasuresSums) return Sums::Round(largest_first, largest_second);
  return largest;
}

/// Stores col + i for each lane i that the mask selects, in ascending order. Returns their number.
template <class DI>
HWY_INLINE std::size_t StoreIndices(DI di, hn::Mask<DI> mask, std::size_t col, std::uint16_t* to) {
  if (hn::AllFalse(di, mask)) return 0;
  alignas(64) hn::TFromD<DI> lanes[hn::MaxLanes(DI())];
  hn::Store(hn::VecFromMask(di, mask), di, lanes);
  std::size_t count = 0;
  for (std::size_t i = 0; i < hn::Lanes(di); ++i) {
    if (lanes[i] != 0) to[count++] = static_cast<std::uint16_t>(col + i);
  }
  return count;
}

/// Rounds to fp32; if Item is narrower, to odd, which sets the last kept bit if a dropped bit is
/// set: rounding the result to Item then equals rounding once. Requires, if narrower: values are
/// zero, normal numbers of fp32, or multiples of 2^-135, which fp32's subnormals hold. 1 or 5 ops.
template <class Item>
HWY_INLINE hn::Vec<hn::Half<DF>> Narrow(hn::Vec<DD> values) {
  const DD dd;
  const hn::Half<DF> half;
  if constexpr (kItemSize<Item> == 4) return hn::DemoteTo(half, values);
  const hn::RebindToUnsigned<DD> d64;
  const auto dropped = hn::Set(d64, (std::uint64_t{1} << (52 - 23)) - 1);
  const auto bits = hn::BitCast(d64, values);
  const auto carry = hn::Add(hn::And(bits, dropped), dropped);  // into the last bit that is kept
  return hn::DemoteTo(half, hn::BitCast(dd, hn::AndNot(dropped, hn::Or(bits, carry))));
}

/// Returns the columns of a vector whose sums may be inexact in binary64, or that have an item or
/// an output that is not finite: outputs round to infinity from half a step above the largest
/// number on. `largest` is the largest magnitude pattern of the items, `smallest` the smallest one
/// less 1, and `amax` the largest output.
template <class T>
HWY_INLINE hn::Mask<DI> NeedsFixedPoint(hn::Vec<D32> largest, hn::Vec<D32> smallest,
                                        hn::Vec<DF> amax) {
  const DI di;
  const auto one = hn::Set(D32(), 1u);
  const auto top = hn::BitCast(di, hn::ShiftRight<23>(largest));
  const auto bottom = hn::Max(hn::ShiftRight<23>(hn::Add(smallest, one)), one);
  const auto spread = hn::Sub(top, hn::BitCast(di, bottom));
  constexpr float kInfinite = [] {
    if constexpr (kItemSize<T> == 4) return std::numeric_limits<float>::infinity();
    if constexpr (kItemSize<T> == 2)
      return kMaxValue<T> + (kMaxValue<T> - narrowfloat::Decode<T>(T::kMaxCode - 1)) / 2;
  }();
  return hn::Or(hn::Or(hn::Gt(spread, hn::Set(di, Spread<T>(53))), hn::Eq(top, hn::Set(di, 255))),
                hn::RebindMask(di, hn::Ge(amax, hn::Set(DF(), kInfinite))));
}

/// Transforms a vector of columns in binary64. Returns as TransformFn does. `factors` are the same
/// as TransformRun's.
template <class T>
HWY_NOINLINE std::size_t TransformWide(const cpu::TransformRows& rows, std::size_t col,
                                       const float* factors, std::uint16_t* inexact,
                                       std::byte* amaxes) {
  const DF df;
  const hn::Half<DF> half;
  const DD dd;
  const D32 d32;
  constexpr std::size_t kCols = hn::MaxLanes(df), kLanes = hn::MaxLanes(dd);
  constexpr std::size_t kHalf = kHadamardSize / 2;
  const std::size_t from = col * kItemSize<T>;
  alignas(64) double values[kHadamardSize][kCols];

  const auto one = hn::Set(d32, 1u);
  auto largest = hn::Zero(d32), smallest = hn::Set(d32, ~0u);
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    PrefetchBytes(rows.next[k] + from, kCols * kItemSize<T>);
    const auto items = LoadFloats<T>(rows.in[k] + from);
    const auto magnitude = hn::And(hn::BitCast(d32, items), hn::Set(d32, ~kFloatSign));
    largest = hn::Max(largest, magnitude);
    smallest = hn::Min(smallest, hn::Sub(magnitude, one));  // zero wraps around
    // Adding zero turns -0 into +0, so that a sum of zeros is +0.
    const auto factor = hn::Set(dd, static_cast<double>(factors[k]));
    const auto scaled = [&](hn::Vec<hn::Half<DF>> some) NF_INLINE_ATTR {
      return hn::MulAdd(hn::PromoteTo(dd, some), factor, hn::Zero(dd));
    };
    hn::Store(scaled(hn::LowerHalf(half, items)), dd, values[k]);
    hn::Store(scaled(hn::UpperHalf(half, items)), dd, values[k] + kLanes);
  }
  for (const std::size_t row : {std::size_t{0}, kHalf}) {
    for (std::size_t c = 0; c < kCols; c += kLanes) {
      Hadamard8(
          dd,
          [&](std::size_t k, hn::Vec<DD>& sum, hn::Vec<DD>& difference) NF_INLINE_ATTR {
            sum = hn::Load(dd, values[row + k] + c);
            difference = hn::Load(dd, values[row + k + 1] + c);
            Hadamard2<false>(sum, difference);
          },
          [&](auto... products) NF_INLINE_ATTR {
            std::size_t k = row;
            (hn::Store(products, dd, values[k++] + c), ...);
          });
    }
  }
  auto amax = hn::Zero(df);
  const auto put = [&](hn::Vec<DD> upper, hn::Vec<DD> lower, std::size_t row) NF_INLINE_ATTR {
    const auto outputs = hn::Combine(df, Narrow<T>(upper), Narrow<T>(lower));
    amax = hn::Max(amax, hn::Abs(outputs));
    StoreFloats<T>(outputs, rows.out[row] + from);
  };
  for (std::size_t j = 0; j < kHalf; ++j) {
    auto a = hn::Load(dd, values[j]), b = hn::Load(dd, values[j] + kLanes);
    auto c = hn::Load(dd, values[j + kHalf]), d = hn::Load(dd, values[j + kHalf] + kLanes);
    Hadamard2<false>(a, c);
    Hadamard2<true>(b, d);
    put(b, a, j);
    put(d, c, j + kHalf);
  }
  StoreFloats<T>(amax, amaxes + from);  // rounding keeps the order of numbers
  return StoreIndices(DI(), NeedsFixedPoint<T>(largest, smallest, amax), col, inexact);
}

/// Finds the columns of a vector whose sums in fp32 may be inexact, and transforms the vectors of
/// fp32 that hold them again, in binary64. Returns as TransformFn does.
template <class Sums>
HWY_NOINLINE std::size_t ExamineRun(const cpu::TransformRows& rows, std::size_t col,
                                    const float* factors, std::uint16_t* inexact,
                                    std::byte* amaxes) {
  const D16 d16;
  auto largest = hn::Zero(d16), smallest = hn::Set(d16, std::uint16_t{0xFFFF});
  const auto one = hn::Set(d16, std::uint16_t{1});
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const auto items = LoadItems(d16, rows.in[k] + col * kItemSize<BFloat16>);
    const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
    largest = hn::Max(largest, magnitude);
    smallest = hn::Min(smallest, hn::Sub(magnitude, one));  // zero wraps around
  }
  constexpr int kBits = BFloat16::kMantissaBits;
  const hn::RebindToSigned<D16> di;
  const auto top = hn::ShiftRight<kBits>(largest);
  const auto bottom = hn::Max(hn::ShiftRight<kBits>(hn::Add(smallest, one)), one);
  const auto spread = hn::BitCast(di, hn::Sub(top, bottom));
  // Less 1, because `smallest` holds magnitudes less 1.
  constexpr auto kLeast = static_cast<std::uint16_t>(Sums::kTiny > 0 ? Sums::kTiny - 1 : 0);
  const auto below = hn::SaturatedSub(hn::Set(d16, kLeast), smallest);
  const auto is_inexact =
      hn::Or(hn::Gt(spread, hn::Set(di, std::int16_t{Spread<BFloat16>(24)})),
             hn::Or(hn::Gt(hn::BitCast(di, top), hn::Set(di, std::int16_t{kLargestField})),
                    hn::Gt(hn::BitCast(di, below), hn::Zero(di))));
  std::uint16_t columns[hn::MaxLanes(D16())];
  const std::size_t found = StoreIndices(di, is_inexact, col, columns), lanes = hn::Lanes(DF());
  std::size_t count = 0;
  for (std::size_t i = 0; i < found;) {
    const std::size_t first = columns[i] / lanes * lanes;
    count += TransformWide<BFloat16>(rows, first, factors, inexact + count, amaxes);
    while (i < found && columns[i] < first + lanes) ++i;
  }
  return count;
}

/// Implements TransformFn for bfloat16. Tests the processor's flags once for kRunsPerTest vectors,
/// and examines these if a sum in fp32 was inexact, which is rare, or an output is not finite.
template <class Sums>
std::size_t TransformBFloat16(const cpu::TransformRows& rows, std::size_t cols,
                              const float* factors, std::uint16_t* inexact, std::byte* amaxes) {
  constexpr std::size_t kRunsPerTest = 4;
  const D16 d16;
  const std::size_t lanes = hn::Lanes(d16);
  cpu::FloatFlags flags;
  std::size_t count = 0;
  for (std::size_t c = 0, end; c < cols; c = end) {
    end = std::min(c + kRunsPerTest * lanes, cols);
    auto largest = hn::Zero(d16);
    for (std::size_t i = c; i < end; i += lanes) {
      const auto of_run = TransformRun<Sums>(rows, i, factors);
      hn::StoreU(of_run, d16, reinterpret_cast<std::uint16_t*>(amaxes) + i);
      largest = hn::Max(largest, of_run);
    }
    const auto outside =
        hn::SaturatedSub(largest, hn::Set(d16, std::uint16_t{kInfinityBits<BFloat16> - 1}));
    if (!flags.AreSet(Sums::kFlags) && hn::AllTrue(d16, hn::Eq(outside, hn::Zero(d16)))) continue;
    for (std::size_t i = c; i < end; i += lanes)
      count += ExamineRun<Sums>(rows, i, factors, inexact + count, amaxes);
    flags.Clear();
  }
  return count;
}

template <class T>
std::size_t Transform(const cpu::TransformRows& rows, std::size_t cols, std::uint32_t sign_mask,
                      std::uint16_t* inexact, std::byte* amaxes) noexcept {
  NF_DCHECK(cols % hn::Lanes(D16()) == 0 && cols <= cpu::kTransformCols);
  float factors[kHadamardSize];
  for (std::size_t k = 0; k < kHadamardSize; ++k)
    factors[k] = static_cast<float>((sign_mask >> k & 1u) != 0 ? -kHadamardScale : kHadamardScale);
  if constexpr (std::is_same_v<T, BFloat16>) {
#if HWY_TARGET == HWY_AVX3_DL
    if (BFloat16Sums::AreAvailable())
      return TransformBFloat16<BFloat16Sums>(rows, cols, factors, inexact, amaxes);
#endif
    return TransformBFloat16<FusedSums>(rows, cols, factors, inexact, amaxes);
  } else {
    std::size_t count = 0;
    for (std::size_t c = 0; c < cols; c += hn::Lanes(DF()))
      count += TransformWide<T>(rows, c, factors, inexact + count, amaxes);
    return count;
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
