// SPDX-License-Identifier: Apache-2.0
// Computes the amaxes of blocks along rows and of columns. Compiled once per instruction set.
#pragma once

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/cpu/nontemporal-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {

/// Does one level of a max tree over several vectors: interleaves the lower and the upper halves of
/// two vectors' 128-bit blocks in units of Unit, and takes the maximum of both results. After the
/// last level, lane j of a 128-bit block holds the maximum of vector j's block. 3 ops.
template <class Unit, class DI>
HWY_INLINE hn::Vec<DI> MergeMaxima(DI di, hn::Vec<DI> even, hn::Vec<DI> odd) {
  const hn::Repartition<Unit, DI> d;
  const auto a = hn::BitCast(d, even), b = hn::BitCast(d, odd);
  return hn::Max(hn::BitCast(di, hn::InterleaveLower(d, a, b)),
                 hn::BitCast(di, hn::InterleaveUpper(d, a, b)));
}

/// Returns the lane-wise maximum of a vector's 128-bit blocks.
template <class DI>
HWY_INLINE auto ReduceBlocks(DI /*di*/, hn::Vec<DI> lanes) {
  if constexpr (hn::MaxLanes(DI()) * sizeof(hn::TFromD<DI>) <= 16) {
    return lanes;
  } else {
    const hn::Half<DI> half;
    return ReduceBlocks(half, hn::Max(hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
  }
}

/// Blocks whose amaxes one tree computes: the lanes of a 128-bit vector.
template <class T>
inline constexpr std::size_t kBlocksPerTree = 16 / kItemSize<T>;

/// Stores the amax patterns of `blocks` adjacent blocks of kBlock items, then zeros up to a whole
/// vector, or up to kPlaces if that is less. Returns the largest pattern of all. Calls
/// visit(magnitudes, i) for each vector of magnitudes, where i is the index of its first item.
/// Each block's maxima are one vector, lane by lane. A tree of MergeMaxima joins the vectors of
/// kBlocksPerTree blocks: 3 ops per vector. Whole vectors of amaxes are stored, because whole
/// vectors are loaded next: a load that covers several narrower stores stalls until these, and all
/// earlier stores, are in the cache.
template <class T, Inputs kInputs, std::size_t kBlock, std::size_t kPlaces, class Visit>
HWY_INLINE std::uint32_t BlockAmaxes(const std::byte* items, std::size_t blocks, std::byte* amaxes,
                                     const Visit& visit) {
  using I = std::make_signed_t<BitsOf<T>>;
  const hn::CappedTag<I, kBlock> di;
  const hn::FixedTag<I, kBlocksPerTree<T>> d128;
  const hn::CappedTag<I, kPlaces> d;
  const std::size_t lanes = hn::Lanes(di);
  const auto one = [&](std::size_t j) NF_INLINE_ATTR {
    if (j >= blocks) return hn::Zero(di);
    const auto magnitudes = [&](std::size_t i) NF_INLINE_ATTR {
      const auto of = Magnitudes<T, kInputs>(di, LoadItems(di, items + i * kItemSize<T>));
      visit(of, i);
      return of;
    };
    auto largest = magnitudes(j * kBlock);
    for (std::size_t i = lanes; i < kBlock; i += lanes)
      largest = hn::Max(largest, magnitudes(j * kBlock + i));
    return largest;
  };
  // Variables, not arguments: a call evaluates its arguments in any order. Items are loaded in
  // ascending order, because processors prefetch in this order.
  const auto two = [&](std::size_t j) NF_INLINE_ATTR {
    const auto first = one(j), second = one(j + 1);
    return MergeMaxima<I>(di, first, second);
  };
  const auto four = [&](std::size_t j) NF_INLINE_ATTR {
    using Unit = std::conditional_t<sizeof(I) == 4, std::int64_t, std::int32_t>;
    const auto first = two(j), second = two(j + 2);
    return MergeMaxima<Unit>(di, first, second);
  };
  const auto tree = [&](auto /*d128*/, std::size_t j) NF_INLINE_ATTR {
    if (j >= blocks) return hn::Zero(d128);
    const auto first = four(j);
    if constexpr (sizeof(I) == 4) {
      return ReduceBlocks(di, first);
    } else {
      const auto second = four(j + 4);
      return ReduceBlocks(di, MergeMaxima<std::int64_t>(di, first, second));
    }
  };
  auto most = hn::Zero(d);
  for (std::size_t j = 0; j < blocks; j += hn::Lanes(d)) {
    const auto largest = JoinParts<kBlocksPerTree<T>>(d, j, tree);
    hn::StoreU(largest, d, reinterpret_cast<I*>(amaxes) + j);
    most = hn::Max(most, largest);
  }
  return LargestLane(d, most);
}

/// Rows that one pass over columns reads.
template <class T>
inline constexpr std::size_t kRowsPerPass = 16 / kItemSize<T>;

/// Rows of the next strip that one pass prefetches, or 0: see docs/performance.md. These numbers
/// were the fastest on a Zen 4.
template <class T>
inline constexpr std::size_t kRowsAhead = HWY_MAX_BYTES < 64  ? 0
                                          : kItemSize<T> == 2 ? 5
                                                              : 3;

/// Updates the maxima of columns with kRowsPerPass rows; if `first`, begins with 0. If `ahead` is
/// not null, prefetches the same columns of its kRowsAhead rows. Returns the largest pattern of
/// all. Requires: `cols` is a multiple of the vector's length.
template <class T, Inputs kInputs>
HWY_INLINE std::uint32_t ColumnMaximaOfPass(const std::byte* const* rows,
                                            const std::byte* const* ahead, std::size_t cols,
                                            bool first, std::make_signed_t<BitsOf<T>>* maxima) {
  const MagnitudeTag<T> di;
  auto most = hn::Zero(di);
  for (std::size_t c = 0; c < cols; c += hn::Lanes(di)) {
    auto largest = first ? hn::Zero(di) : hn::LoadU(di, maxima + c);
    if (ahead != nullptr) {
      for (std::size_t i = 0; i < kRowsAhead<T>; ++i)
        PrefetchBytes(ahead[i] + c * kItemSize<T>, hn::Lanes(di) * kItemSize<T>);
    }
    for (std::size_t i = 0; i < kRowsPerPass<T>; ++i) {
      const auto items = LoadItems(di, rows[i] + c * kItemSize<T>);
      largest = hn::Max(largest, Magnitudes<T, kInputs>(di, items));
    }
    hn::StoreU(largest, di, maxima + c);
    most = hn::Max(most, largest);
  }
  return LargestLane(di, most);
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
