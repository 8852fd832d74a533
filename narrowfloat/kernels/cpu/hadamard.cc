// SPDX-License-Identifier: Apache-2.0
// The random Hadamard transform of bfloat16, the type that it is trained in; other types are left
// to the oracle. Lanes are columns.
#include "narrowfloat/numerics/hadamard.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/hadamard.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>
#include <array>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/stream-inl.h"
#include "narrowfloat/kernels/cpu/tables.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/exact_sum.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

ByType<HadamardFn> Table() {
  return {};
}

#else

using D16 = hn::Repartition<std::uint16_t, D8>;
using D32 = hn::RebindToUnsigned<DF>;

/// Sums of all signs of Sylvester's matrix, in place: exact, so that their order does not matter.
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

/// A group of rows from a column on, and where its transform goes.
struct Group {
  std::array<const std::byte*, kHadamardSize> in;
  std::array<std::byte*, kHadamardSize> out;

  Group At(std::size_t col) const {
    Group group = *this;
    for (const std::byte*& row : group.in) row += col * kItemSize<BFloat16>;
    for (std::byte*& row : group.out) row += col * kItemSize<BFloat16>;
    return group;
  }
};

// A sum of 16 numbers below 2^(e+1) is below 2^(e+5) and a multiple of the last bit of the smallest
// of them. It is exact in a format of `digits` bits if these are no further apart.
constexpr int kGrowth = 5;
constexpr int Spread(int digits) {
  return digits - kGrowth - BFloat16::kMantissaBits;
}
constexpr std::uint32_t kLargestField = 254 - kGrowth;

/// One column whose sums fp32 does not hold: binary64, or the oracle.
HWY_NOINLINE void TransformColumn(const Group& group, std::uint32_t sign_mask) {
  double values[kHadamardSize];
  std::uint32_t largest = 0, smallest = ~0u;
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const float item = LoadItem<BFloat16>(group.in[k], 0);
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(item) & ~kFloatSign;
    largest = std::max(largest, magnitude >> 23);
    if (magnitude != 0) smallest = std::min(smallest, std::max(magnitude >> 23, 1u));
    values[k] = static_cast<double>((sign_mask >> k & 1u) != 0 ? -item : item);
  }
  if (largest > 254 || static_cast<int>(largest) - static_cast<int>(smallest) > Spread(53)) {
    const Tile column{0, kHadamardSize, 0, 1};
    std::array<std::ptrdiff_t, kHadamardSize> in, out;
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      in[k] = group.in[k] - group.in[0];
      out[k] = group.out[k] - group.out[0];
    }
    return ScalarKernels().hadamard[static_cast<std::size_t>(kDTypeOf<BFloat16>)](
        {group.in[0], 0, in.data()}, column, sign_mask, {group.out[0], 0, out.data()});
  }
  Butterflies(
      values, [](double a, double b) { return a + b; }, [](double a, double b) { return a - b; });
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    // A sum of zeros is +0.
    StoreItem<BFloat16>(group.out[j], 0, RoundToOdd(values[j] * kHadamardScale + 0.0));
  }
}

/// Transforms of values, whose sums fp32 holds; in the upper halves of lanes, rounded to bfloat16.
HWY_INLINE void TransformLanes(hn::Vec<DF>* values, hn::Vec<D32>* rounded) {
  const DF df;
  const D32 d32;
  Butterflies(
      values, [](auto a, auto b) NF_INLINE_ATTR { return hn::Add(a, b); },
      [](auto a, auto b) NF_INLINE_ATTR { return hn::Sub(a, b); });
#pragma GCC unroll 16
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    // Adding zero makes a sum of zeros +0.
    const auto sum =
        hn::MulAdd(values[j], hn::Set(df, static_cast<float>(kHadamardScale)), hn::Zero(df));
    const auto bits = hn::BitCast(d32, sum);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
    rounded[j] = hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFFu)), odd);
  }
}

/// As many columns as 16-bit lanes.
HWY_INLINE void TransformRun(const Group& group, std::uint32_t sign_mask) {
  const D16 d16;
  const D32 d32;
  const DF df;
  hn::Vec<D32> pairs[kHadamardSize];
  auto largest = hn::Zero(d16), smallest = hn::Set(d16, std::uint16_t{0xFFFF});
  const auto one = hn::Set(d16, std::uint16_t{1});
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const auto items = LoadItems(d16, group.in[k]);
    const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
    largest = hn::Max(largest, magnitude);
    smallest = hn::Min(smallest, hn::Sub(magnitude, one));  // zero wraps around
    const auto sign = static_cast<std::uint16_t>((sign_mask >> k & 1u) << 15);
    pairs[k] = hn::BitCast(d32, hn::Xor(items, hn::Set(d16, sign)));
  }

  hn::Vec<DF> values[kHadamardSize];
  hn::Vec<D32> even[kHadamardSize], odd[kHadamardSize];
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kHadamardSize; ++k)
    values[k] = hn::BitCast(df, hn::ShiftLeft<16>(pairs[k]));
  TransformLanes(values, even);
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kHadamardSize; ++k)
    values[k] = hn::BitCast(df, hn::And(pairs[k], hn::Set(d32, 0xFFFF0000u)));
  TransformLanes(values, odd);
#pragma GCC unroll 16
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    const auto items =
        hn::OddEven(hn::BitCast(d16, odd[j]), hn::BitCast(d16, hn::ShiftRight<16>(even[j])));
    hn::StoreU(items, d16, reinterpret_cast<std::uint16_t*>(group.out[j]));
  }

  constexpr int kBits = BFloat16::kMantissaBits;
  const auto top = hn::ShiftRight<kBits>(largest);
  const auto bottom = hn::Max(hn::ShiftRight<kBits>(hn::Add(smallest, one)), one);
  const hn::RebindToSigned<D16> di;
  const auto spread = hn::BitCast(di, hn::Sub(top, bottom));
  const auto misfit =
      hn::Or(hn::Gt(spread, hn::Set(di, std::int16_t{Spread(24)})),
             hn::Gt(hn::BitCast(di, top), hn::Set(di, std::int16_t{kLargestField})));
  if (hn::AllFalse(di, misfit)) return;
  alignas(64) std::int16_t misfits[hn::MaxLanes(D16())];
  hn::Store(hn::VecFromMask(di, misfit), di, misfits);
  for (std::size_t i = 0; i < hn::Lanes(d16); ++i) {
    if (misfits[i] != 0) TransformColumn(group.At(i), sign_mask);
  }
}

/// Columns that fill no vector.
HWY_NOINLINE void TransformFew(const Group& group, std::size_t cols, std::uint32_t sign_mask) {
  for (std::size_t c = 0; c < cols; ++c) TransformColumn(group.At(c), sign_mask);
}

void TransformRows(const MatrixRows<const std::byte>& in, const Tile& tile, std::uint32_t sign_mask,
                   const MatrixRows<std::byte>& out) noexcept {
  const std::size_t lanes = hn::Lanes(D16());
  for (std::size_t r = tile.row_begin; r < tile.row_end; r += kHadamardSize) {
    Group group;
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      group.in[k] = in.Row(r + k) + tile.col_begin * kItemSize<BFloat16>;
      group.out[k] = out.Row(r + k - tile.row_begin);
    }
    const std::size_t cols = tile.col_end - tile.col_begin;
    std::size_t c = 0;
    for (; c + lanes <= cols; c += lanes) TransformRun(group.At(c), sign_mask);
    if (c < cols) TransformFew(group.At(c), cols - c, sign_mask);
  }
}

template <class T>
constexpr HadamardFn Slot() {
  return std::is_same_v<T, BFloat16> ? &TransformRows : nullptr;
}
template <class... T>
constexpr ByType<HadamardFn> MakeTable(TypeList<T...>) {
  return {Slot<T>()...};
}

ByType<HadamardFn> Table() {
  return MakeTable(FloatTypes{});
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(Table);
namespace cpu {
ByType<HadamardFn> HadamardTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
