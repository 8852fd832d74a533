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

/// Return a + b and a - b. They multiply b by 1 in the same instruction, if there is one: AMD's
/// processors execute it on other units than additions.
HWY_INLINE hn::Vec<DF> FusedAdd(hn::Vec<DF> a, hn::Vec<DF> b) {
  if constexpr (HWY_NATIVE_FMA) return hn::MulAdd(b, Opaque(hn::Set(DF(), 1.0f)), a);
  return hn::Add(a, b);
}
HWY_INLINE hn::Vec<DF> FusedSub(hn::Vec<DF> a, hn::Vec<DF> b) {
  if constexpr (HWY_NATIVE_FMA) return hn::NegMulAdd(b, Opaque(hn::Set(DF(), 1.0f)), a);
  return hn::Sub(a, b);
}

/// Adds kSumCols items to two vectors of sums. bfloat16: 5 ops, fp32: 4.
template <class T>
HWY_INLINE void AddItems(const std::byte* items, hn::Vec<DF>& first, hn::Vec<DF>& second) {
  if constexpr (kAdjacentSums<T>) {
    first = hn::Add(first, LoadFloats<T>(items));
    second = FusedAdd(second, LoadFloats<T>(items + hn::Lanes(DF()) * kItemSize<T>));
  } else {
    const D32 d32;
    const auto pairs = Opaque(LoadItems(d32, items));
    first = hn::Add(first, WidenEven<T, Inputs::kAll>(d32, pairs));
    second = FusedAdd(second, WidenOdd<T, Inputs::kAll>(d32, pairs));
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

/// Transforms kWideCols columns from `col` on in binary64. Returns the number of columns whose sums
/// are inexact even there, and stores their indices. The compiler vectorizes the loops over
/// columns.
constexpr std::size_t kWideCols = 8;
template <class T>
HWY_NOINLINE std::size_t TransformColumns(const cpu::TransformRows& rows, std::size_t col,
                                          std::uint32_t sign_mask, std::uint16_t* inexact) {
  double values[kHadamardSize][kWideCols];
  std::uint32_t largest[kWideCols] = {}, smallest[kWideCols];  // exponents, as fields of fp32
  std::fill_n(smallest, kWideCols, 254u);
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const std::uint32_t sign = (sign_mask >> k & 1u) << 31;
    for (std::size_t c = 0; c < kWideCols; ++c) {
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
      for (std::size_t c = 0; c < kWideCols; ++c) {
        const double a = values[i][c], b = values[i + half][c];
        values[i][c] = a + b;
        values[i + half][c] = a - b;
      }
    }
  }
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    for (std::size_t c = 0; c < kWideCols; ++c) {
      const double sum = values[j][c] * kHadamardScale + 0.0;  // a sum of zeros is +0
      StoreItem<T>(rows.out[j], col + c,
                   kItemSize<T> == 4 ? static_cast<float>(sum) : RoundToOdd(sum));
    }
  }
  std::size_t count = 0;
  for (std::size_t c = 0; c < kWideCols; ++c) {
    const int spread = static_cast<int>(largest[c]) - static_cast<int>(smallest[c]);
    if (largest[c] > 254 || spread > Spread<T>(53))
      inexact[count++] = static_cast<std::uint16_t>(col + c);
  }
  return count;
}

/// Sylvester's matrix.
inline constexpr auto kSylvester = [] {
  std::array<std::array<double, kHadamardSize>, kHadamardSize> matrix{};
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    for (std::size_t j = 0; j < kHadamardSize; ++j)
      matrix[k][j] = HadamardNegates(k, j, 0) ? -1 : 1;
  }
  return matrix;
}();

/// Transforms a column of bfloat16 in binary64. Returns false if a sum may be inexact even there,
/// or an output is neither zero nor a normal number. The compiler vectorizes the loops.
HWY_NOINLINE bool TransformColumn(const cpu::TransformRows& rows, std::size_t col,
                                  std::uint32_t sign_mask) {
  constexpr int kBelow = 52 - BFloat16::kMantissaBits;  // bits of a mantissa that are rounded off
  constexpr std::uint64_t kRebias = (1023 - 127) << BFloat16::kMantissaBits;
  std::uint32_t items[kHadamardSize];
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    std::uint16_t item;
    std::memcpy(&item, rows.in[k] + col * sizeof item, sizeof item);
    items[k] = std::uint32_t{item} << 16 ^ (sign_mask >> k & 1u) << 31;
  }
  std::uint32_t largest = 0, smallest = 254;  // exponents, as fields of fp32
  for (const std::uint32_t item : items) {
    const std::uint32_t magnitude = item & ~kFloatSign, field = std::max(magnitude >> 23, 1u);
    largest = std::max(largest, field);
    smallest = std::min(smallest, magnitude != 0 ? field : 254u);
  }
  double sums[kHadamardSize] = {};
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const double item = static_cast<double>(std::bit_cast<float>(items[k])) * kHadamardScale;
    for (std::size_t j = 0; j < kHadamardSize; ++j) sums[j] += item * kSylvester[k][j];
  }
  constexpr std::uint64_t kSmallest = 1u << BFloat16::kMantissaBits;  // normal number
  std::uint64_t codes[kHadamardSize], outside = 0;
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    const auto bits = std::bit_cast<std::uint64_t>(sums[j]), sign = bits >> 63;
    const std::uint64_t magnitude = bits & ~(sign << 63);
    const std::uint64_t below_half = (1ull << (kBelow - 1)) - 1, odd = magnitude >> kBelow & 1;
    const std::uint64_t code = ((magnitude + below_half + odd) >> kBelow) - kRebias;
    const bool is_normal = code - kSmallest < kInfinityBits<BFloat16> - kSmallest;
    codes[j] = magnitude == 0 ? 0 : code | sign << 15;
    outside |= magnitude != 0 && !is_normal ? 1 : 0;
  }
  for (std::size_t j = 0; j < kHadamardSize; ++j) {
    const auto code = static_cast<std::uint16_t>(codes[j]);
    std::memcpy(rows.out[j] + col * sizeof code, &code, sizeof code);
  }
  const int spread = static_cast<int>(largest) - static_cast<int>(smallest);
  return outside == 0 && spread <= Spread<BFloat16>(53);
}

/// Sets two vectors to their sum and their difference. 2 ops.
template <bool kFused>
HWY_INLINE void Hadamard2(hn::Vec<DF>& a, hn::Vec<DF>& b) {
  const auto first = a, second = b;
  if constexpr (kFused) {
    a = FusedAdd(first, second);
    b = FusedSub(first, second);
  } else {
    a = hn::Add(first, second);
    b = hn::Sub(first, second);
  }
}

/// Multiplies 16 vectors by Sylvester's matrix, in fp32, and calls store(j, vector) for each
/// product. two(k, sum, difference) sets the sum and the difference of the vectors k and k + 1.
/// Requires: sums are exact, so that their order does not matter. 48 ops.
template <class Two, class Store>
HWY_INLINE void Hadamard16(const Two& two, const Store& store) {
  const DF df;
  const auto four = [&](std::size_t k, hn::Vec<DF>& a, hn::Vec<DF>& b, hn::Vec<DF>& c,
                        hn::Vec<DF>& d) NF_INLINE_ATTR {
    two(k, a, b);
    two(k + 2, c, d);
    Hadamard2<false>(a, c);
    Hadamard2<false>(b, d);
  };
  auto a0 = hn::Zero(df), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  auto c0 = a0, c1 = a0, c2 = a0, c3 = a0, d0 = a0, d1 = a0, d2 = a0, d3 = a0;
  four(0, a0, a1, a2, a3);
  four(4, b0, b1, b2, b3);
  four(8, c0, c1, c2, c3);
  four(12, d0, d1, d2, d3);
  const auto finish = [&](std::size_t j, hn::Vec<DF> a, hn::Vec<DF> b, hn::Vec<DF> c, hn::Vec<DF> d)
                          NF_INLINE_ATTR {
                            Hadamard2<true>(a, b);
                            Hadamard2<true>(c, d);
                            Hadamard2<false>(a, c);
                            Hadamard2<false>(b, d);
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

/// Sums of bfloat16 in fp32, of the even columns of a vector and then of the odd ones. Products of
/// bfloat16 with `factors`, the scale with the signs of the rows, are exact.
struct FusedSums {
  // Magnitudes up to this need binary64, but for zero.
  static constexpr std::uint16_t kInexact = 0;
  const float* factors;

  // Adding zero makes -0 to +0, so that a sum of zeros is +0. 3 ops and 2 to widen.
  template <bool kSecond>
  HWY_INLINE void Two(std::size_t k, hn::Vec<D16> row, hn::Vec<D16> next_row, hn::Vec<DF>& sum,
                      hn::Vec<DF>& difference) const {
    const D32 d32;
    const DF df;
    const auto widen = [&](hn::Vec<D16> items) NF_INLINE_ATTR {
      const auto pairs = hn::BitCast(d32, items);
      if constexpr (kSecond) return WidenOdd<BFloat16, Inputs::kFinite>(d32, pairs);
      return WidenEven<BFloat16, Inputs::kFinite>(d32, pairs);
    };
    const auto first = hn::MulAdd(widen(row), hn::Set(df, factors[k]), hn::Zero(df));
    const auto second = widen(next_row), factor = hn::Set(df, factors[k + 1]);
    sum = hn::MulAdd(second, factor, first);
    difference = hn::NegMulAdd(second, factor, first);
  }
  static HWY_INLINE hn::Vec<D16> Round(hn::Vec<DF> even, hn::Vec<DF> odd) {
    return InterleaveAsBFloat16(even, odd);
  }
};

#if HWY_TARGET == HWY_AVX3_DL
/// The same by the instructions of AVX512_BF16, for which Highway 1.0.3 has no functions: of the
/// lower 4 columns of each 8, and then of the upper ones. They take subnormal numbers for zeros,
/// and return zeros for them.
struct BFloat16Sums {
  // The same: products of larger magnitudes with the scale are multiples of 2^-126, the smallest
  // normal number.
  static_assert(kHadamardScale == 0.25);
  static constexpr std::uint16_t kInexact = (1 + BFloat16::kMantissaBits + 2)
                                            << BFloat16::kMantissaBits;
  const float* factors;

  static bool AreAvailable() {
    static const bool are = __builtin_cpu_supports("avx512bf16") != 0;
    return are;
  }
  /// 3 ops.
  template <bool kSecond>
  HWY_INLINE void Two(std::size_t k, hn::Vec<D16> row, hn::Vec<D16> next_row, hn::Vec<DF>& sum,
                      hn::Vec<DF>& difference) const {
    const D16 d16;
    const auto pairs =
        kSecond ? hn::InterleaveUpper(d16, row, next_row) : hn::InterleaveLower(d16, row, next_row);
    const std::uint32_t both = std::bit_cast<std::uint32_t>(factors[k]) >> 16 |
                               (std::bit_cast<std::uint32_t>(factors[k + 1]) & 0xFFFF0000u);
    sum = Products(pairs, both);
    difference = Products(pairs, both ^ kFloatSign);
  }
  static HWY_INLINE hn::Vec<D16> Round(hn::Vec<DF> lower, hn::Vec<DF> upper) {
    const hn::Repartition<std::uint64_t, D16> d64;
    alignas(64) static constexpr std::uint64_t kOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};
    hn::Vec<D16> rounded;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded.raw) : "v"(lower.raw), "v"(upper.raw));
    return hn::BitCast(
        D16(), hn::TableLookupLanes(hn::BitCast(d64, rounded), hn::SetTableIndices(d64, kOrder)));
  }

 private:
  /// Returns the sums of the products of pairs of bfloat16 with two factors.
  static HWY_INLINE hn::Vec<DF> Products(hn::Vec<D16> pairs, std::uint32_t factors_of_pair) {
    auto sum = hn::Zero(DF());
    asm("vdpbf16ps %2, %1, %0"
        : "+v"(sum.raw)
        : "v"(pairs.raw), "v"(hn::Set(D32(), factors_of_pair).raw));
    return sum;
  }
};
#endif

/// Transforms a vector of columns of bfloat16, from `col` on, in fp32; columns whose sums are
/// inexact there again in binary64. About 400 ops by FusedSums, 270 by BFloat16Sums.
template <class Sums>
HWY_INLINE std::size_t TransformRun(const cpu::TransformRows& rows, std::size_t col,
                                    const Sums& sums, std::uint32_t sign_mask,
                                    std::uint16_t* inexact) {
  const D16 d16;
  const DF df;
  const std::size_t from = col * kItemSize<BFloat16>;
  auto largest = hn::Zero(d16), smallest = hn::Set(d16, std::uint16_t{0xFFFF});
  const auto one = hn::Set(d16, std::uint16_t{1});
  const auto update_range = [&](hn::Vec<D16> items) NF_INLINE_ATTR {
    const auto magnitude = hn::And(items, hn::Set(d16, std::uint16_t{0x7FFF}));
    largest = hn::Max(largest, magnitude);
    smallest = hn::Min(smallest, hn::Sub(magnitude, one));  // zero wraps around
  };
  alignas(64) float first[kHadamardSize * hn::MaxLanes(df)];
  Hadamard16(
      [&](std::size_t k, hn::Vec<DF>& sum, hn::Vec<DF>& difference) NF_INLINE_ATTR {
        const auto row = LoadItems(d16, rows.in[k] + from),
                   next = LoadItems(d16, rows.in[k + 1] + from);
        PrefetchBytes(rows.next[k] + from, hn::Lanes(d16) * kItemSize<BFloat16>);
        PrefetchBytes(rows.next[k + 1] + from, hn::Lanes(d16) * kItemSize<BFloat16>);
        update_range(row);
        update_range(next);
        sums.template Two<false>(k, row, next, sum, difference);
      },
      [&](std::size_t j, hn::Vec<DF> sum)
          NF_INLINE_ATTR { hn::Store(sum, df, first + j * hn::Lanes(df)); });
  Hadamard16(
      [&](std::size_t k, hn::Vec<DF>& sum, hn::Vec<DF>& difference) NF_INLINE_ATTR {
        sums.template Two<true>(k, LoadItems(d16, rows.in[k] + from),
                                LoadItems(d16, rows.in[k + 1] + from), sum, difference);
      },
      [&](std::size_t j, hn::Vec<DF> sum) NF_INLINE_ATTR {
        const auto items = Sums::Round(hn::Load(df, first + j * hn::Lanes(df)), sum);
        hn::StoreU(items, d16, reinterpret_cast<std::uint16_t*>(rows.out[j] + from));
      });

  constexpr int kBits = BFloat16::kMantissaBits;
  const hn::RebindToSigned<D16> di;
  const auto top = hn::ShiftRight<kBits>(largest);
  const auto bottom = hn::Max(hn::ShiftRight<kBits>(hn::Add(smallest, one)), one);
  const auto spread = hn::BitCast(di, hn::Sub(top, bottom));
  const auto below = hn::SaturatedSub(hn::Set(d16, Sums::kInexact), smallest);
  const auto is_inexact =
      hn::Or(hn::Gt(spread, hn::Set(di, std::int16_t{Spread<BFloat16>(24)})),
             hn::Or(hn::Gt(hn::BitCast(di, top), hn::Set(di, std::int16_t{kLargestField})),
                    hn::Gt(hn::BitCast(di, below), hn::Zero(di))));
  if (hn::AllFalse(di, is_inexact)) return 0;
  alignas(64) std::int16_t lanes[hn::MaxLanes(D16())];
  hn::Store(hn::VecFromMask(di, is_inexact), di, lanes);
  std::size_t count = 0;
  for (std::size_t i = 0; i < hn::Lanes(d16); ++i) {
    if (lanes[i] != 0 && !TransformColumn(rows, col + i, sign_mask))
      inexact[count++] = static_cast<std::uint16_t>(col + i);
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
    const auto transform = [&](const auto& sums) NF_INLINE_ATTR {
      for (std::size_t c = 0; c < cols; c += hn::Lanes(D16()))
        count += TransformRun(rows, c, sums, sign_mask, inexact + count);
      return count;
    };
#if HWY_TARGET == HWY_AVX3_DL
    if (BFloat16Sums::AreAvailable()) return transform(BFloat16Sums{factors});
#endif
    return transform(FusedSums{factors});
  } else {
    for (std::size_t c = 0; c < cols; c += kWideCols)
      count += TransformColumns<T>(rows, c, sign_mask, inexact + count);
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
