// SPDX-License-Identifier: Apache-2.0
// Rounds products to codes, and computes random bytes. Compiled once per instruction set.
#pragma once

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/numerics/stochastic.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

/// Rounds to nearest. Codes16 of a coder returns codes as Encode16 does, Codes32 as Encode32 does.
/// `i` is the index of the first item in its run; From(i) returns the coder from that item on.
template <FloatFormat F, Inputs kInputs>
struct NearestCoder {
  static constexpr Inputs kKind = kInputs;
  const std::uint8_t* random = nullptr;  // not read; both coders are built from random bytes

  template <class T>
  HWY_INLINE hn::Vec<D16> Codes16(hn::Vec<D16> items, hn::Vec<DF> even, hn::Vec<DF> odd,
                                  std::size_t /*i*/) const {
    const auto scale = [&](std::size_t j) NF_INLINE_ATTR {
      if (j == 0) return even;
      return odd;
    };
    return Encode16<F, T, kInputs>(items, scale, 0);
  }
  HWY_INLINE hn::Vec<D32> Codes32(hn::Vec<D32> items, hn::Vec<DF> scale, std::size_t /*i*/) const {
    const auto same = [&](std::size_t) NF_INLINE_ATTR { return scale; };
    return Encode32<F, kInputs>(items, same, 0);
  }
  HWY_INLINE NearestCoder From(std::size_t /*i*/) const { return *this; }
};

/// Returns product + step * byte / 256, the first half of stochastic rounding: truncating the sum
/// (TruncateToE2M1) gives EncodeStochastic's code. Requires: the product is not negative. step is
/// half of `binade`, the BinadeOf the product and 1, E2M1's smallest normal number. `random` has
/// the byte in the low bits of kDitherBase: this float is 2^14 + byte * 2^-9. 2 ops.
inline constexpr std::uint32_t kDitherBase = 0x46800000;
HWY_INLINE hn::Vec<DF> AddDither(hn::Vec<DF> product, hn::Vec<DF> binade, hn::Vec<D32> random) {
  const auto share = hn::Sub(hn::BitCast(DF(), random), hn::Set(DF(), 0x1p14f));  // exact
  return hn::MulAdd(binade, share, product);  // the product with `binade` is exact
}

/// Returns AddDither's `random` for the even or the odd items of a vector of 16-bit items. `bytes`
/// has the byte of each item in its 16-bit lane. 1 op for the even items, 2 for the odd ones.
template <bool kOdd>
HWY_INLINE hn::Vec<D32> Dither(hn::Vec<D16> bytes) {
  const D32 d32;
  const auto base = hn::Set(d32, kDitherBase);
  if constexpr (kOdd) return hn::Or(hn::ShiftRight<16>(hn::BitCast(d32, bytes)), base);
  return hn::BitCast(d32, hn::OddEven(hn::BitCast(D16(), base), bytes));
}

/// Truncates magnitudes to E2M1, saturating: the second half of stochastic rounding. Returns codes
/// shifted left by kCodeShift. `exponents` has the exponent field and the first mantissa bit of
/// each magnitude. 6 ops. The sum may be in the binade above the product's, but less than a step
/// above its first number: on the grids of both binades, it then becomes that number.
HWY_INLINE hn::Vec<D16> TruncateToE2M1(hn::Vec<D16> exponents) {
  const D16 d16;
  static_assert(E2M1::kMantissaBits == 1 && E2M1::kBias == 1);
  constexpr std::uint16_t kBelowHalf = (126 << 1) - 1;
  // magnitude   < 0.5   0.5 and 0.75   1   1.5   2   ...
  // above       0       1 and 2        3   4     5   ...
  // code        0       1 and 1        2   3     4   ...
  const auto above = hn::SaturatedSub(exponents, hn::Set(d16, kBelowHalf));
  const auto one = hn::Set(d16, std::uint16_t{1});
  const auto code = hn::Max(hn::SaturatedSub(above, one), hn::Min(above, one));
  const auto most = hn::Set(d16, static_cast<std::uint16_t>(E2M1::kMaxCode));
  return hn::ShiftLeft<kCodeShift<E2M1>>(hn::Min(code, most));
}

/// Rounds stochastically, with one random byte per item.
template <Inputs kInputs>
struct StochasticCoder {
  static constexpr Inputs kKind = kInputs;
  static constexpr int kAbove =
      23 - E2M1::kMantissaBits;  // bits of a float below TruncateToE2M1's input
  const std::uint8_t* random;

  template <class T>
  HWY_INLINE hn::Vec<D16> Codes16(hn::Vec<D16> items, hn::Vec<DF> even_scale, hn::Vec<DF> odd_scale,
                                  std::size_t i) const {
    const D16 d16;
    const D32 d32;
    const hn::Rebind<std::uint8_t, D16> d8;
    const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
    const auto pairs = hn::BitCast(d32, magnitude);
    const auto bytes = hn::PromoteTo(d16, hn::LoadU(d8, random + i));
    const auto even = Raised(hn::Mul(WidenEven<T, kKind>(pairs), even_scale), Dither<false>(bytes));
    const auto odd = Raised(hn::Mul(WidenOdd<T, kKind>(pairs), odd_scale), Dither<true>(bytes));
    const auto codes = TruncateToE2M1(
        hn::OddEven(hn::BitCast(d16, hn::ShiftRight<kAbove - 16>(hn::BitCast(d32, odd))),
                    hn::BitCast(d16, hn::ShiftRight<kAbove>(hn::BitCast(d32, even)))));
    return WithSigns<E2M1, T, kInputs>(codes, items, magnitude);
  }

  HWY_INLINE hn::Vec<D32> Codes32(hn::Vec<D32> items, hn::Vec<DF> scale, std::size_t i) const {
    const D32 d32;
    const hn::Rebind<std::uint8_t, D32> d8;
    const auto magnitude = hn::BitCast(DF(), hn::And(items, hn::Set(d32, ~kFloatSign)));
    const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, random + i));
    const auto raised = Raised(hn::Mul(magnitude, scale), hn::Or(bytes, hn::Set(d32, kDitherBase)));
    const auto exponents = hn::ShiftRight<kAbove>(hn::BitCast(d32, raised));
    return hn::BitCast(d32, TruncateToE2M1(hn::BitCast(D16(), exponents)));
  }

  HWY_INLINE StochasticCoder From(std::size_t i) const { return {random + i}; }

 private:
  static HWY_INLINE hn::Vec<DF> Raised(hn::Vec<DF> product, hn::Vec<D32> dither) {
    return AddDither(product, BinadeOf(product, hn::Set(DF(), 1.0f)), dither);
  }
};

using D64 = hn::ScalableTag<std::uint64_t>;
using Words = hn::Vec<D64>;

/// Does one round of Philox4x32 on the words a to d of several runs, one run per 64-bit lane. The
/// words are in the low halves; the high halves are undefined. `low` and `high` hold the round's
/// key in every lane. Does the same for the other chains. For each chain 6 ops on AVX-512, else 8.
template <class... Chains>
HWY_INLINE void PhiloxRound(Words low, Words high, Words& a, Words& b, Words& c, Words& d,
                            Chains&... others) {
  const hn::Repartition<std::uint32_t, D64> d32;
  const auto product = [&](Words word, std::uint32_t factor) NF_INLINE_ATTR {
    return hn::MulEven(hn::BitCast(d32, word), hn::Set(d32, factor));
  };
  const auto of_a = product(a, kPhiloxFactors[0]), of_c = product(c, kPhiloxFactors[1]);
  // Opaque, so that the compiler does not compute one chain after the other.
  a = Opaque(hn::Xor(hn::ShiftRight<32>(of_c), hn::Xor(b, low)));
  b = of_c;
  c = Opaque(hn::Xor(hn::ShiftRight<32>(of_a), hn::Xor(d, high)));
  d = of_a;
  if constexpr (sizeof...(others) > 0) PhiloxRound(low, high, others...);
}

/// Stores the RandomBytes of the runs in the even 64-bit lanes, then of the runs in the odd lanes.
/// 6 ops.
HWY_INLINE void StoreRandom(Words a, Words b, Words c, Words d, std::uint8_t* out) {
  const D64 d64;
  const hn::Repartition<std::uint32_t, D64> d32;
  const auto pair = [&](Words low, Words high) NF_INLINE_ATTR {
    return hn::BitCast(
        d64, hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(high)), hn::BitCast(d32, low)));
  };
  const auto first = pair(a, b), second = pair(c, d);
  auto* to = reinterpret_cast<std::uint64_t*>(out);
  hn::StoreU(hn::InterleaveLower(d64, first, second), d64, to);
  hn::StoreU(hn::InterleaveUpper(d64, first, second), d64, to + hn::Lanes(d64));
}

/// Writes RandomBytes of the runs first, first + step, ...: `count` runs of kRandomRun bytes,
/// rounded up to whole vectors of runs. Computes two vectors at once, or four of 512 bits: this
/// takes hardly longer than one vector, because each round depends on the one before. Vectors past
/// the last run are not stored.
HWY_INLINE void FillRandom(const RandomState& state, std::uint64_t first, std::uint64_t step,
                           std::size_t count, std::uint8_t* out) noexcept {
  const D64 d64;
  const hn::Repartition<std::uint32_t, D64> d32;
  constexpr std::size_t kLanes = hn::MaxLanes(d64);
  alignas(64) std::uint64_t steps[kLanes];  // in StoreRandom's order
  for (std::size_t i = 0; i < kLanes; ++i) steps[i] = (i / 2 + i % 2 * (kLanes / 2)) * step;
  const auto runs = [&](std::size_t i) NF_INLINE_ATTR {
    return hn::Add(hn::Load(d64, steps), hn::Set(d64, first + i * step));
  };
  std::uint32_t keys[kPhiloxRounds][2];
  PhiloxKey key(state.seed);
  for (auto& of_round : keys) {
    of_round[0] = key.low;
    of_round[1] = key.high;
    key.Next();
  }
  const auto store = [&](std::size_t i, Words a, Words b, Words c, Words d) NF_INLINE_ATTR {
    if (i < count) StoreRandom(a, b, c, d, out + i * kRandomRun);
  };
  constexpr bool kFour = HWY_MAX_BYTES >= 64;
  for (std::size_t i = 0; i < count; i += (kFour ? 4 : 2) * kLanes) {
    // Keeps the keys in memory: AVX-512's instructions load and repeat them at no cost.
    asm("" : "+m"(keys));
    const Words a = hn::Set(d64, state.offset), b = hn::Set(d64, state.offset >> 32);
    Words a1 = a, b1 = b, c1 = runs(i), d1 = hn::ShiftRight<32>(c1);
    Words a2 = a, b2 = b, c2 = runs(i + kLanes), d2 = hn::ShiftRight<32>(c2);
    Words a3 = a, b3 = b, c3 = runs(i + 2 * kLanes), d3 = hn::ShiftRight<32>(c3);
    Words a4 = a, b4 = b, c4 = runs(i + 3 * kLanes), d4 = hn::ShiftRight<32>(c4);
#pragma GCC unroll 10
    for (const auto& of_round : keys) {
      const Words low = hn::BitCast(d64, hn::Set(d32, of_round[0]));
      const Words high = hn::BitCast(d64, hn::Set(d32, of_round[1]));
      PhiloxRound(low, high, a1, b1, c1, d1, a2, b2, c2, d2);
      if constexpr (kFour) PhiloxRound(low, high, a3, b3, c3, d3, a4, b4, c4, d4);
    }
    store(i, a1, b1, c1, d1);
    store(i + kLanes, a2, b2, c2, d2);
    if constexpr (!kFour) continue;
    store(i + 2 * kLanes, a3, b3, c3, d3);
    store(i + 3 * kLanes, a4, b4, c4, d4);
  }
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
