// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "narrowfloat/kernels/cpu/item_kernels.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/hadamard-inl.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"
#include "narrowfloat/kernels/dcheck.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

/// Number of parts of a long run that are read side by side, and the fewest bytes of such a run.
/// The processor prefetches ahead in each part, and so more lines than in one sequence.
constexpr std::size_t kParts = 8, kBytesOfParts = std::size_t{64} << 10;
/// Addresses this many bytes apart share a set of a first-level cache, and often of larger ones.
constexpr std::size_t kSetPeriod = 4096;

/// Returns the largest magnitude pattern of a run. With kFinite, it is above infinity's if an item
/// is NaN. 3 ops for each vector: load, clear the sign, maximum; 5 with kAll.
template <class T, Inputs kInputs>
HWY_INLINE std::uint32_t LargestBits(const std::byte* items, std::size_t count) {
  const MagnitudeTag<T> di;
  const std::size_t bytes = hn::Lanes(di) * kItemSize<T>, all = count * kItemSize<T>;
  const auto magnitudes = [&](const std::byte* at) NF_INLINE_ATTR {
    return Magnitudes<T, kInputs>(di, LoadItems(di, at));
  };
  auto a = hn::Zero(di), b = a, c = a, d = a;  // four, because a maximum has a latency
  const auto update = [&](const std::byte* at) NF_INLINE_ATTR {
    a = hn::Max(a, magnitudes(at));
    b = hn::Max(b, magnitudes(at + bytes));
    c = hn::Max(c, magnitudes(at + 2 * bytes));
    d = hn::Max(d, magnitudes(at + 3 * bytes));
  };
  std::size_t i = 0;
  if (all >= kBytesOfParts) {
    std::size_t part = all / kParts / (4 * bytes) * (4 * bytes);
    if (part % kSetPeriod == 0) part -= 4 * bytes;
    for (std::size_t at = 0; at < part; at += 4 * bytes) {
      for (std::size_t k = 0; k < kParts; ++k) update(items + k * part + at);
    }
    i = kParts * part;
  }
  for (; i + 4 * bytes <= all; i += 4 * bytes) update(items + i);
  for (; i + bytes <= all; i += bytes) a = hn::Max(a, magnitudes(items + i));
  if (i < all) {
    alignas(64) std::byte tail[HWY_MAX_BYTES];
    b = hn::Max(b, magnitudes(cpu::PadItems(items + i, all - i, sizeof tail, tail)));
  }
  return LargestLane(di, hn::Max(hn::Max(a, b), hn::Max(c, d)));
}

template <class T>
float RunAmax(const std::byte* items, std::size_t count) noexcept {
  const std::uint32_t largest = LargestBits<T, Inputs::kFinite>(items, count);
  if (largest <= kInfinityBits<T>) return MagnitudeValue<T>(largest);
  return MagnitudeValue<T>(LargestBits<T, Inputs::kAll>(items, count));
}

/// True if two vectors of sums hold adjacent columns. For bfloat16 the first one holds the even
/// columns of a group and the second one the odd columns, because pairs of items widen to these.
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
    second = FusedAdd(second, LoadFloats<T>(items + hn::Lanes(DF()) * kItemSize<T>));
  } else {
    const auto pairs = Opaque(LoadItems(D32(), items));
    first = hn::Add(first, WidenEven<T, Inputs::kAll>(pairs));
    second = FusedAdd(second, WidenOdd<T, Inputs::kAll>(pairs));
  }
}

/// The rows of one pass over the columns. The sums in memory are in the order of the columns before
/// the first pass and after the last one, and in the order of the lanes between passes.
struct SumPass {
  const std::byte* const* rows;
  std::size_t count;
  bool is_first, is_last;
};

/// Loads the first vector of the sums of kSumCols columns or, if kSecond, the second one.
template <class T, bool kSecond>
HWY_INLINE hn::Vec<DF> LoadSums(const SumPass& pass, const float* at) {
  const DF df;
  const auto first = hn::LoadU(df, at), second = hn::LoadU(df, at + hn::Lanes(df));
  if (!kAdjacentSums<T> && pass.is_first)
    return kSecond ? hn::ConcatOdd(df, second, first) : hn::ConcatEven(df, second, first);
  return kSecond ? second : first;
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

#if HWY_TARGET == HWY_SVE2_128
#define NF_INLINE_GROUPS HWY_NOINLINE  // g++ 12 crashes if it inlines the function for SVE
#else
#define NF_INLINE_GROUPS HWY_INLINE
#endif

/// Adds the rows of a pass to the sums of the groups from `col` on, kSumCols columns in each. The
/// number of rows is not a constant, because the compiler would unroll the loop over them and run
/// out of registers.
template <class T, bool kWithAmax, std::size_t... kGroups>
NF_INLINE_GROUPS void AddToGroups(std::index_sequence<kGroups...> /*groups*/, const SumPass& pass,
                                  std::size_t col, float* sums,
                                  hn::Vec<MagnitudeTag<T> >& largest) {
  float* at = sums + col;
  const auto add = [&](const std::byte* items, hn::Vec<DF>& first, hn::Vec<DF>& second)
                       NF_INLINE_ATTR {
                         AddItems<T>(items, first, second);
                         if constexpr (kWithAmax) UpdateLargest<T>(items, largest);
                       };
  [&](auto... first) NF_INLINE_ATTR {
    [&](auto... second) NF_INLINE_ATTR {
      for (std::size_t i = 0; i < pass.count; ++i) {
        const std::byte* items = pass.rows[i] + col * kItemSize<T>;
        (add(items + kGroups * kSumCols * kItemSize<T>, first, second), ...);
      }
      (StoreSums<T>(pass, first, second, at + kGroups * kSumCols), ...);
    }(LoadSums<T, true>(pass, at + kGroups * kSumCols)...);
  }(LoadSums<T, false>(pass, at + kGroups * kSumCols)...);
}

/// Adds kRowsPerSum rows at a time, so that sums are loaded and stored once for all of them.
/// Returns the largest magnitude pattern, or 0 without kWithAmax.
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
      AddToGroups<T, kWithAmax>(std::make_index_sequence<4>(), pass, c, sums, largest);
    for (; c < cols; c += kSumCols)
      AddToGroups<T, kWithAmax>(std::make_index_sequence<1>(), pass, c, sums, largest);
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

template <class T>
constexpr cpu::ItemKernels kItemKernels{
    .amax = &RunAmax<T>, .add_rows = &AddRows<T>, .transform = &Transform<T>};

}  // namespace

const ByType<cpu::ItemKernels>* ItemKernelsTable() {
  static constexpr auto kTable = ArrayOf(FloatTypes{}, []<class T>() { return kItemKernels<T>; });
  return &kTable;
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
