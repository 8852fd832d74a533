// SPDX-License-Identifier: Apache-2.0
// Computes the random Hadamard transform. Lanes are columns. Sums of bfloat16 items are taken in
// fp32, sums of other types in binary64.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/numerics/hadamard.h"

#include <algorithm>
#include <array>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/exact_sum.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

/// Computes the signed sums of Sylvester's matrix in place, by butterflies. Requires: sums are
/// exact, so that their order does not matter.
template <class Value, class Add, class Sub>
HWY_INLINE void Butterflies(Value* values, const Add& add, const Sub& sub) {
#pragma GCC unroll 4
  for (std::size_t half = 1; half < kHadamardSize; half *= 2) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kHadamardSize; ++i) {
      if ((i & half) != 0) continue;
      const Value a = values[i], b = values[i + half];
      values[i] = add(a, b);
      values[i + half] = sub(a, b);
    }
  }
}

/// Addresses of the kHadamardSize rows of a group, of its transform, and of what to prefetch.
struct Group {
  std::array<const std::byte*, kHadamardSize> in, next;
  std::array<std::byte*, kHadamardSize> out;
};

// A sum of 16 numbers below 2^(e+1) is below 2^(e+5) and a multiple of the last bit of the smallest
// of them. It is exact in a format of `digits` bits if these are no further apart.
constexpr int kGrowth = 5;
template <class T>
constexpr int Spread(int digits) {
  if constexpr (kItemSize<T> == 4) return digits - kGrowth - 23;
  if constexpr (kItemSize<T> == 2) return digits - kGrowth - T::kMantissaBits;
}
constexpr std::uint32_t kLargestField = 254 - kGrowth;

template <class T>
void TransformByReference(const Group& group, std::size_t col, std::uint32_t sign_mask) {
  const Tile column{0, kHadamardSize, col, col + 1};
  std::array<std::ptrdiff_t, kHadamardSize> in, out;
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    in[k] = group.in[k] - group.in[0];
    out[k] = group.out[k] - group.out[0];
  }
  ScalarKernels().hadamard[static_cast<std::size_t>(kDTypeOf<T>)](
      {group.in[0], 0, in.data()}, column, sign_mask,
      {group.out[0] + col * kItemSize<T>, 0, out.data()});
}

/// Transforms kCols columns from `col` on in binary64. Columns whose sums are inexact even there go
/// to the reference. The compiler vectorizes the loops over columns.
template <class T, std::size_t kCols>
HWY_NOINLINE void TransformColumns(const Group& group, std::size_t col, std::uint32_t sign_mask) {
  struct Values {
    double of[kCols];
  };
  Values values[kHadamardSize];
  std::uint32_t largest[kCols] = {}, smallest[kCols];  // exponents, as fields of fp32
  std::fill_n(smallest, kCols, 254u);
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const std::uint32_t sign = (sign_mask >> k & 1u) << 31;
    for (std::size_t c = 0; c < kCols; ++c) {
      const auto bits = std::bit_cast<std::uint32_t>(LoadItem<T>(group.in[k], col + c));
      const std::uint32_t magnitude = bits & ~kFloatSign;
      const std::uint32_t field = std::max(magnitude >> 23, 1u);
      largest[c] = std::max(largest[c], field);
      smallest[c] = std::min(smallest[c], magnitude != 0 ? field : 254u);
      values[k].of[c] = static_cast<double>(std::bit_cast<float>(bits ^ sign));
    }
  }
  const auto combined = [](const Values& a, const Values& b, auto combine) NF_INLINE_ATTR {
    Values result;
    for (std::size_t c = 0; c < kCols; ++c) result.of[c] = combine(a.of[c], b.of[c]);
    return result;
  };
  Butterflies(
      values,
      [&](const Values& a, const Values& b)
          NF_INLINE_ATTR { return combined(a, b, [](double x, double y) { return x + y; }); },
      [&](const Values& a, const Values& b)
          NF_INLINE_ATTR { return combined(a, b, [](double x, double y) { return x - y; }); });
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    for (std::size_t c = 0; c < kCols; ++c) {
      const double sum = values[j].of[c] * kHadamardScale + 0.0;  // a sum of zeros is +0
      StoreItem<T>(group.out[j], col + c,
                   kItemSize<T> == 4 ? static_cast<float>(sum) : RoundToOdd(sum));
    }
  }
  for (std::size_t c = 0; c < kCols; ++c) {
    const int spread = static_cast<int>(largest[c]) - static_cast<int>(smallest[c]);
    if (largest[c] > 254 || spread > Spread<T>(53)) {
      TransformByReference<T>(group, col + c, sign_mask);
    }
  }
}

/// Transforms lanes in fp32. Requires: sums are exact in fp32.
HWY_INLINE void TransformLanes(hn::Vec<DF>* values) {
  const DF df;
  Butterflies(
      values, [](auto a, auto b) NF_INLINE_ATTR { return hn::Add(a, b); },
      [](auto a, auto b) NF_INLINE_ATTR { return hn::Sub(a, b); });
#pragma GCC unroll 16
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    // Adding zero makes a sum of zeros +0.
    values[j] =
        hn::MulAdd(values[j], hn::Set(df, static_cast<float>(kHadamardScale)), hn::Zero(df));
  }
}

/// Rounds fp32 values in the even and in the odd lanes of two vectors to bfloat16, to nearest even,
/// and interleaves them. Rounds up if the lower half is above 0x8000, after it took the last bit of
/// the upper half as its own. Requires: no NaN. 9 ops for twice the lanes.
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

/// Transforms as many columns of bfloat16, from `col` on, as there are 16-bit lanes; columns whose
/// sums are inexact in fp32 again in binary64.
HWY_INLINE void TransformRun(const Group& group, std::size_t col, std::uint32_t sign_mask) {
  const D16 d16;
  const D32 d32;
  const DF df;
  const std::size_t from = col * kItemSize<BFloat16>;
  hn::Vec<D32> pairs[kHadamardSize];
  auto largest = hn::Zero(d16), smallest = hn::Set(d16, std::uint16_t{0xFFFF});
  const auto one = hn::Set(d16, std::uint16_t{1});
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const auto items = LoadItems(d16, group.in[k] + from);
    PrefetchBytes(group.next[k] + from, hn::Lanes(d16) * kItemSize<BFloat16>);
    const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
    largest = hn::Max(largest, magnitude);
    smallest = hn::Min(smallest, hn::Sub(magnitude, one));  // zero wraps around
    const auto sign = static_cast<std::uint16_t>((sign_mask >> k & 1u) << 15);
    pairs[k] = hn::BitCast(d32, hn::Xor(items, hn::Set(d16, sign)));
  }

  hn::Vec<DF> even[kHadamardSize], odd[kHadamardSize];
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kHadamardSize; ++k)
    even[k] = hn::BitCast(df, hn::ShiftLeft<16>(pairs[k]));
  TransformLanes(even);
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kHadamardSize; ++k)
    odd[k] = hn::BitCast(df, hn::And(pairs[k], hn::Set(d32, 0xFFFF0000u)));
  TransformLanes(odd);
#pragma GCC unroll 16
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    hn::StoreU(InterleaveAsBFloat16(even[j], odd[j]), d16,
               reinterpret_cast<std::uint16_t*>(group.out[j] + from));
  }

  constexpr int kBits = BFloat16::kMantissaBits;
  const auto top = hn::ShiftRight<kBits>(largest);
  const auto bottom = hn::Max(hn::ShiftRight<kBits>(hn::Add(smallest, one)), one);
  const hn::RebindToSigned<D16> di;
  const auto spread = hn::BitCast(di, hn::Sub(top, bottom));
  const auto slow = hn::Or(hn::Gt(spread, hn::Set(di, std::int16_t{Spread<BFloat16>(24)})),
                           hn::Gt(hn::BitCast(di, top), hn::Set(di, std::int16_t{kLargestField})));
  if (hn::AllFalse(di, slow)) return;
  alignas(64) std::int16_t slow_lanes[hn::MaxLanes(D16())];
  hn::Store(hn::VecFromMask(di, slow), di, slow_lanes);
  for (std::size_t i = 0; i < hn::Lanes(d16); ++i) {
    if (slow_lanes[i] != 0) TransformColumns<BFloat16, 1>(group, col + i, sign_mask);
  }
}

template <class T>
struct TransformRows {
  static void Run(const MatrixRows<const std::byte>& in, const Tile& tile, std::uint32_t sign_mask,
                  const MatrixRows<std::byte>& out) noexcept {
    const std::size_t cols = tile.col_end - tile.col_begin;
    const std::size_t from = tile.col_begin * kItemSize<T>, beside = tile.col_end * kItemSize<T>;
    for (std::size_t r = tile.row_begin; r < tile.row_end; r += kHadamardSize) {
      Group group;
      for (std::size_t k = 0; k < kHadamardSize; ++k) {
        group.in[k] = in.Row(r + k) + from;
        group.next[k] = r + kHadamardSize < tile.row_end ? in.Row(r + kHadamardSize + k) + from
                                                         : in.Row(tile.row_begin + k) + beside;
        group.out[k] = out.Row(r + k - tile.row_begin);
      }
      std::size_t c = 0;
      for (; c + ColsPerPass() <= cols; c += ColsPerPass()) TransformCols(group, c, sign_mask);
      for (; c < cols; ++c) TransformColumns<T, 1>(group, c, sign_mask);
    }
  }

 private:
  static constexpr std::size_t kWide = 8;  // columns in binary64

  static std::size_t ColsPerPass() {
    return std::is_same_v<T, BFloat16> ? hn::Lanes(D16()) : kWide;
  }
  static HWY_INLINE void TransformCols(const Group& group, std::size_t col,
                                       std::uint32_t sign_mask) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      TransformRun(group, col, sign_mask);
    } else {
      TransformColumns<T, kWide>(group, col, sign_mask);
    }
  }
};

template <class... T>
constexpr ByType<HadamardFn> MakeTable(TypeList<T...>) {
  return {&TransformRows<T>::Run...};
}

}  // namespace

ByType<HadamardFn> HadamardTable() {
  return MakeTable(FloatTypes{});
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
