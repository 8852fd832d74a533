// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/kernels/cpu/item_kernels.h"

#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"
#include "narrowfloat/kernels/dcheck.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/exact_sum.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

/// Returns the largest magnitude pattern of a run: above infinity's if an item is NaN, with
/// kFinite. 3 ops for each vector: load, clear the sign, maximum; 5 with kAll.
template <class T, Inputs kInputs>
HWY_INLINE std::uint32_t LargestBits(const std::byte* items, std::size_t count) {
  const MagnitudeTag<T> di;
  const std::size_t bytes = hn::Lanes(di) * kItemSize<T>, all = count * kItemSize<T>;
  const auto magnitudes = [&](const std::byte* at) NF_INLINE_ATTR {
    return Magnitudes<T, kInputs>(di, LoadItems(di, at));
  };
  auto a = hn::Zero(di), b = a, c = a, d = a;  // several, since a maximum has a latency
  std::size_t i = 0;
  for (; i + 4 * bytes <= all; i += 4 * bytes) {
    a = hn::Max(a, magnitudes(items + i));
    b = hn::Max(b, magnitudes(items + i + bytes));
    c = hn::Max(c, magnitudes(items + i + 2 * bytes));
    d = hn::Max(d, magnitudes(items + i + 3 * bytes));
  }
  for (; i + bytes <= all; i += bytes) a = hn::Max(a, magnitudes(items + i));
  if (i < all) {
    ZeroPadded<T, HWY_MAX_BYTES / kItemSize<T> > tail;
    tail.Fill(items + i, (all - i) / kItemSize<T>);
    b = hn::Max(b, magnitudes(tail.items));
  }
  return LargestLane(di, hn::Max(hn::Max(a, b), hn::Max(c, d)));
}

template <class T>
float RunAmax(const std::byte* items, std::size_t count) noexcept {
  const std::uint32_t largest = LargestBits<T, Inputs::kFinite>(items, count);
  if (largest <= kInfinityBits<T>) return MagnitudeValue<T>(largest);
  return MagnitudeValue<T>(LargestBits<T, Inputs::kAll>(items, count));
}

/// Two vectors of sums hold adjacent columns if this is true; else the even columns of a group, and
/// the odd ones, because bfloat16 comes apart that way.
template <class T>
inline constexpr bool kAdjacentSums = !std::is_same_v<T, BFloat16>;

/// Columns of two vectors of sums.
inline constexpr std::size_t kSumCols = 2 * hn::MaxLanes(DF());
static_assert(cpu::kColumnUnit % kSumCols == 0);

/// Adds kSumCols items to two vectors of sums. bfloat16: 5 ops, fp32: 4.
template <class T>
HWY_INLINE void AddItems(const std::byte* items, hn::Vec<DF>& first, hn::Vec<DF>& second) {
  if constexpr (kAdjacentSums<T>) {
    first = hn::Add(first, LoadFloats<T>(items));
    second = hn::Add(second, LoadFloats<T>(items + hn::Lanes(DF()) * kItemSize<T>));
  } else {
    const D32 d32;
    const auto pairs = LoadedOnce(LoadItems(d32, items));
    first = hn::Add(first, WidenEven<T, Inputs::kAll>(d32, pairs));
    second = hn::Add(second, WidenOdd<T, Inputs::kAll>(d32, pairs));
  }
}

/// The rows of one pass over the columns. Sums are in the order of the columns before the first
/// pass and after the last one, in the order of the lanes between passes.
struct SumPass {
  const std::byte* const* rows;
  std::size_t count;
  bool is_first, is_last;
};

template <class T>
HWY_INLINE void LoadSums(const SumPass& pass, const float* at, hn::Vec<DF>& first,
                         hn::Vec<DF>& second) {
  const DF df;
  first = hn::LoadU(df, at);
  second = hn::LoadU(df, at + hn::Lanes(df));
  if constexpr (!kAdjacentSums<T>) {
    if (!pass.is_first) return;
    const auto even = hn::ConcatEven(df, second, first);
    second = hn::ConcatOdd(df, second, first);
    first = even;
  }
}
template <class T>
HWY_INLINE void StoreSums(const SumPass& pass, hn::Vec<DF> first, hn::Vec<DF> second, float* at) {
  const DF df;
  if (!kAdjacentSums<T> && pass.is_last) return hn::StoreInterleaved2(first, second, df, at);
  hn::StoreU(first, df, at);
  hn::StoreU(second, df, at + hn::Lanes(df));
}

/// Updates the largest magnitude patterns with kSumCols items.
template <class T>
HWY_INLINE void UpdateLargest(const std::byte* items, hn::Vec<MagnitudeTag<T> >& largest) {
  const MagnitudeTag<T> di;
  for (std::size_t i = 0; i < kSumCols; i += hn::Lanes(di)) {
    largest = hn::Max(largest,
                      Magnitudes<T, Inputs::kFinite>(di, LoadItems(di, items + i * kItemSize<T>)));
  }
}

/// Adds the rows of a pass to kSumCols or 4 * kSumCols columns from `col` on. The number of rows is
/// not a constant: the compiler would unroll the loop over them and run out of registers.
template <class T, bool kWithAmax>
HWY_INLINE void AddToOne(const SumPass& pass, std::size_t col, float* sums,
                         hn::Vec<MagnitudeTag<T> >& largest) {
  auto a = hn::Zero(DF()), b = a;
  LoadSums<T>(pass, sums + col, a, b);
  for (std::size_t i = 0; i < pass.count; ++i) {
    const std::byte* items = pass.rows[i] + col * kItemSize<T>;
    AddItems<T>(items, a, b);
    if constexpr (kWithAmax) UpdateLargest<T>(items, largest);
  }
  StoreSums<T>(pass, a, b, sums + col);
}
template <class T, bool kWithAmax>
HWY_INLINE void AddToFour(const SumPass& pass, std::size_t col, float* sums,
                          hn::Vec<MagnitudeTag<T> >& largest) {
  constexpr std::size_t kStep = kSumCols * kItemSize<T>;
  float* at = sums + col;
  auto a = hn::Zero(DF()), b = a, c = a, d = a, e = a, f = a, g = a, h = a;
  LoadSums<T>(pass, at, a, b);
  LoadSums<T>(pass, at + kSumCols, c, d);
  LoadSums<T>(pass, at + 2 * kSumCols, e, f);
  LoadSums<T>(pass, at + 3 * kSumCols, g, h);
  for (std::size_t i = 0; i < pass.count; ++i) {
    const std::byte* items = pass.rows[i] + col * kItemSize<T>;
    AddItems<T>(items, a, b);
    if constexpr (kWithAmax) UpdateLargest<T>(items, largest);
    AddItems<T>(items + kStep, c, d);
    if constexpr (kWithAmax) UpdateLargest<T>(items + kStep, largest);
    AddItems<T>(items + 2 * kStep, e, f);
    if constexpr (kWithAmax) UpdateLargest<T>(items + 2 * kStep, largest);
    AddItems<T>(items + 3 * kStep, g, h);
    if constexpr (kWithAmax) UpdateLargest<T>(items + 3 * kStep, largest);
  }
  StoreSums<T>(pass, a, b, at);
  StoreSums<T>(pass, c, d, at + kSumCols);
  StoreSums<T>(pass, e, f, at + 2 * kSumCols);
  StoreSums<T>(pass, g, h, at + 3 * kSumCols);
}

/// Adds kRowsPerSum rows at a time, so that sums are loaded and stored once for all of them.
/// Returns the largest magnitude pattern, if kWithAmax.
template <class T, bool kWithAmax>
HWY_INLINE std::uint32_t AddPasses(const std::byte* const* rows, std::size_t count,
                                   std::size_t cols, float* sums) {
  NF_DCHECK(cols % cpu::kColumnUnit == 0);
  constexpr std::size_t kRowsPerSum = 8;  // sequences of reads that a core prefetches at once
  auto largest = hn::Zero(MagnitudeTag<T>());
  for (std::size_t r = 0; r < count; r += kRowsPerSum) {
    const std::size_t some = std::min(kRowsPerSum, count - r);
    const SumPass pass{rows + r, some, r == 0, r + some == count};
    std::size_t c = 0;
    for (; c + 4 * kSumCols <= cols; c += 4 * kSumCols)
      AddToFour<T, kWithAmax>(pass, c, sums, largest);
    for (; c < cols; c += kSumCols) AddToOne<T, kWithAmax>(pass, c, sums, largest);
  }
  return LargestLane(MagnitudeTag<T>(), largest);
}

template <class T>
void AddRows(const std::byte* const* rows, std::size_t count, std::size_t cols, float* sums,
             float* amax) noexcept {
  if (amax == nullptr) {
    AddPasses<T, false>(rows, count, cols, sums);
    return;
  }
  const std::uint32_t largest = AddPasses<T, true>(rows, count, cols, sums);
  *amax = largest <= kInfinityBits<T> ? MagnitudeValue<T>(largest)
                                      : std::numeric_limits<float>::quiet_NaN();
}

// A sum of 16 numbers below 2^(e+1) is below 2^(e+5) and a multiple of the last bit of the smallest
// of them. It is exact in a format of `digits` bits if these are no further apart.
constexpr int kGrowth = 5;
template <class T>
constexpr int Spread(int digits) {
  if constexpr (kItemSize<T> == 4) return digits - kGrowth - 23;
  if constexpr (kItemSize<T> == 2) return digits - kGrowth - T::kMantissaBits;
}
constexpr std::uint32_t kLargestField = 254 - kGrowth;

/// Transforms kCols columns from `col` on in binary64. Returns the number of columns whose sums are
/// inexact even there, and stores their indices. The compiler vectorizes the loops over columns.
template <class T, std::size_t kCols>
HWY_NOINLINE std::size_t TransformColumns(const cpu::TransformRows& rows, std::size_t col,
                                          std::uint32_t sign_mask, std::uint16_t* inexact) {
  double values[kHadamardSize][kCols];
  std::uint32_t largest[kCols] = {}, smallest[kCols];  // exponents, as fields of fp32
  std::fill_n(smallest, kCols, 254u);
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const std::uint32_t sign = (sign_mask >> k & 1u) << 31;
    for (std::size_t c = 0; c < kCols; ++c) {
      const auto bits = std::bit_cast<std::uint32_t>(LoadItem<T>(rows.in[k], col + c));
      const std::uint32_t magnitude = bits & ~kFloatSign;
      const std::uint32_t field = std::max(magnitude >> 23, 1u);
      largest[c] = std::max(largest[c], field);
      smallest[c] = std::min(smallest[c], magnitude != 0 ? field : 254u);
      values[k][c] = static_cast<double>(std::bit_cast<float>(bits ^ sign));
    }
  }
#pragma GCC unroll 4
  for (std::size_t half = 1; half < kHadamardSize; half *= 2) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kHadamardSize; ++i) {
      if ((i & half) != 0) continue;
      for (std::size_t c = 0; c < kCols; ++c) {
        const double a = values[i][c], b = values[i + half][c];
        values[i][c] = a + b;
        values[i + half][c] = a - b;
      }
    }
  }
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    for (std::size_t c = 0; c < kCols; ++c) {
      const double sum = values[j][c] * kHadamardScale + 0.0;  // a sum of zeros is +0
      StoreItem<T>(rows.out[j], col + c,
                   kItemSize<T> == 4 ? static_cast<float>(sum) : RoundToOdd(sum));
    }
  }
  std::size_t count = 0;
  for (std::size_t c = 0; c < kCols; ++c) {
    const int spread = static_cast<int>(largest[c]) - static_cast<int>(smallest[c]);
    if (largest[c] > 254 || spread > Spread<T>(53))
      inexact[count++] = static_cast<std::uint16_t>(col + c);
  }
  return count;
}

/// Multiplies four vectors by Sylvester's matrix of 4 x 4, in place. {1, 2, 3, 4} in a lane:
/// {10, -2, -4, 0}. 8 ops.
HWY_INLINE void Hadamard4(hn::Vec<DF>& a, hn::Vec<DF>& b, hn::Vec<DF>& c, hn::Vec<DF>& d) {
  const auto sum = hn::Add(a, b), difference = hn::Sub(a, b);
  const auto other_sum = hn::Add(c, d), other_difference = hn::Sub(c, d);
  a = hn::Add(sum, other_sum);
  b = hn::Add(difference, other_difference);
  c = hn::Sub(sum, other_sum);
  d = hn::Sub(difference, other_difference);
}

/// Multiplies the vectors load(0) to load(15) by Sylvester's matrix, in fp32, and calls
/// store(j, vector) for each product. Requires: sums are exact, so that their order does not
/// matter. 64 ops.
template <class Load, class Store>
HWY_INLINE void Hadamard16(const Load& load, const Store& store) {
  auto a0 = load(0), a1 = load(1), a2 = load(2), a3 = load(3);
  Hadamard4(a0, a1, a2, a3);
  auto b0 = load(4), b1 = load(5), b2 = load(6), b3 = load(7);
  Hadamard4(b0, b1, b2, b3);
  auto c0 = load(8), c1 = load(9), c2 = load(10), c3 = load(11);
  Hadamard4(c0, c1, c2, c3);
  auto d0 = load(12), d1 = load(13), d2 = load(14), d3 = load(15);
  Hadamard4(d0, d1, d2, d3);
  const auto finish = [&](std::size_t j, hn::Vec<DF> a, hn::Vec<DF> b, hn::Vec<DF> c, hn::Vec<DF> d)
                          NF_INLINE_ATTR {
                            Hadamard4(a, b, c, d);
                            store(j, a);
                            store(j + 4, b);
                            store(j + 8, c);
                            store(j + 12, d);
                          };
  finish(0, a0, b0, c0, d0);
  finish(1, a1, b1, c1, d1);
  finish(2, a2, b2, c2, d2);
  finish(3, a3, b3, c3, d3);
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

/// Transforms a vector of columns of bfloat16, from `col` on, in fp32; columns whose sums are
/// inexact there again in binary64. `factors` are the scale with the signs of the rows: products of
/// bfloat16 with it are exact. About 450 ops.
HWY_INLINE std::size_t TransformRun(const cpu::TransformRows& rows, std::size_t col,
                                    const float* factors, std::uint32_t sign_mask,
                                    std::uint16_t* inexact) {
  const D16 d16;
  const D32 d32;
  const DF df;
  const std::size_t from = col * kItemSize<BFloat16>;
  const auto one = hn::Set(d16, std::uint16_t{1});
  auto largest = hn::Zero(d16), smallest = hn::Set(d16, std::uint16_t{0xFFFF});
  // Adding zero makes -0 to +0, so that a sum of zeros is +0.
  const auto term = [&](std::size_t k, hn::Vec<D32> value) NF_INLINE_ATTR {
    return hn::MulAdd(hn::BitCast(df, value), hn::Set(df, factors[k]), hn::Zero(df));
  };
  alignas(64) float even[kHadamardSize * hn::MaxLanes(DF())];
  Hadamard16(
      [&](std::size_t k) NF_INLINE_ATTR {
        const auto items = LoadItems(d16, rows.in[k] + from);
        PrefetchBytes(rows.next[k] + from, hn::Lanes(d16) * kItemSize<BFloat16>);
        const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
        largest = hn::Max(largest, magnitude);
        smallest = hn::Min(smallest, hn::Sub(magnitude, one));  // zero wraps around
        return term(k, hn::ShiftLeft<16>(hn::BitCast(d32, items)));
      },
      [&](std::size_t j, hn::Vec<DF> sum)
          NF_INLINE_ATTR { hn::Store(sum, df, even + j * hn::Lanes(df)); });
  Hadamard16(
      [&](std::size_t k) NF_INLINE_ATTR {
        return term(k, hn::And(LoadItems(d32, rows.in[k] + from), hn::Set(d32, 0xFFFF0000u)));
      },
      [&](std::size_t j, hn::Vec<DF> sum) NF_INLINE_ATTR {
        const auto items = InterleaveAsBFloat16(hn::Load(df, even + j * hn::Lanes(df)), sum);
        hn::StoreU(items, d16, reinterpret_cast<std::uint16_t*>(rows.out[j] + from));
      });

  constexpr int kBits = BFloat16::kMantissaBits;
  const hn::RebindToSigned<D16> di;
  const auto top = hn::ShiftRight<kBits>(largest);
  const auto bottom = hn::Max(hn::ShiftRight<kBits>(hn::Add(smallest, one)), one);
  const auto spread = hn::BitCast(di, hn::Sub(top, bottom));
  const auto is_inexact =
      hn::Or(hn::Gt(spread, hn::Set(di, std::int16_t{Spread<BFloat16>(24)})),
             hn::Gt(hn::BitCast(di, top), hn::Set(di, std::int16_t{kLargestField})));
  if (hn::AllFalse(di, is_inexact)) return 0;
  alignas(64) std::int16_t lanes[hn::MaxLanes(D16())];
  hn::Store(hn::VecFromMask(di, is_inexact), di, lanes);
  std::size_t count = 0;
  for (std::size_t i = 0; i < hn::Lanes(d16); ++i) {
    if (lanes[i] != 0)
      count += TransformColumns<BFloat16, 1>(rows, col + i, sign_mask, inexact + count);
  }
  return count;
}

template <class T>
std::size_t Transform(const cpu::TransformRows& rows, std::size_t cols, std::uint32_t sign_mask,
                      std::uint16_t* inexact) noexcept {
  NF_DCHECK(cols % cpu::kColumnUnit == 0 && cols <= cpu::kTransformCols);
  std::size_t count = 0;
  if constexpr (std::is_same_v<T, BFloat16>) {
    float factors[kHadamardSize];
    for (std::size_t k = 0; k < kHadamardSize; ++k)
      factors[k] =
          static_cast<float>((sign_mask >> k & 1u) != 0 ? -kHadamardScale : kHadamardScale);
    for (std::size_t c = 0; c < cols; c += hn::Lanes(D16()))
      count += TransformRun(rows, c, factors, sign_mask, inexact + count);
  } else {
    constexpr std::size_t kWide = 8;  // columns in binary64
    for (std::size_t c = 0; c < cols; c += kWide)
      count += TransformColumns<T, kWide>(rows, c, sign_mask, inexact + count);
  }
  return count;
}

template <class T>
constexpr cpu::ItemKernels kItemKernels{.item_bytes = kItemSize<T>,
                                        .amax = &RunAmax<T>,
                                        .add_rows = &AddRows<T>,
                                        .transform = &Transform<T>};

}  // namespace

const ByType<cpu::ItemKernels>* ItemKernelsTable() {
  static constexpr auto kTable = ArrayOf(FloatTypes{}, []<class T>() { return kItemKernels<T>; });
  return &kTable;
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
