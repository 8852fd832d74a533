// SPDX-License-Identifier: Apache-2.0
// The sums of a tile's columns. Lanes are columns, so that each is added in the order of the rows,
// as the oracle does it. A few rows at a time, so that sums are loaded and stored once for all.
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/column_sum.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/lanes-inl.h"
#include "narrowfloat/kernels/scalar/items.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

ByType<ColumnSumFn> Table() {
  return {};
}

#else

using D32 = hn::RebindToUnsigned<DF>;

/// Values of 16-bit items that stand in the lower halves of lanes, zeros above; exact. NaN stays
/// NaN. float16: 8 ops; the product with 2^112 moves the exponent over, and what is beyond the
/// largest number gets fp32's exponent for it.
template <class T>
HWY_INLINE hn::Vec<DF> ValuesOf(hn::Vec<D32> halves) {
  const DF df;
  const D32 d32;
  if constexpr (std::is_same_v<T, BFloat16>) {
    return hn::BitCast(df, hn::ShiftLeft<16>(halves));
  } else {
    const auto magnitude = hn::And(halves, hn::Set(d32, 0x7FFFu));
    const auto sign = hn::ShiftLeft<16>(hn::Xor(halves, magnitude));
    const auto beyond = hn::Gt(hn::BitCast(hn::RebindToSigned<D32>(), magnitude),
                               hn::Set(hn::RebindToSigned<D32>(), std::int32_t{T::kMaxCode}));
    const auto moved = hn::ShiftLeft<13>(magnitude);
    const auto value = hn::Mul(hn::BitCast(df, moved), hn::Set(df, 0x1p112f));
    const auto special = hn::BitCast(df, hn::Or(moved, hn::Set(d32, kFloatInfinity)));
    return hn::Or(hn::IfThenElse(hn::RebindMask(df, beyond), special, value),
                  hn::BitCast(df, sign));
  }
}

/// The even and the odd ones of 16-bit items.
template <class T>
HWY_INLINE hn::Vec<DF> EvenValues(hn::Vec<D32> pairs) {
  if constexpr (std::is_same_v<T, BFloat16>) return ValuesOf<T>(pairs);
  return ValuesOf<T>(hn::And(pairs, hn::Set(D32(), 0xFFFFu)));
}
template <class T>
HWY_INLINE hn::Vec<DF> OddValues(hn::Vec<D32> pairs) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return hn::BitCast(DF(), hn::And(pairs, hn::Set(D32(), 0xFFFF0000u)));
  return ValuesOf<T>(hn::ShiftRight<16>(pairs));
}

/// A pair of vectors of sums, in an order that suits the items, and the same pair of items.
template <class T>
struct Sums {
  hn::Vec<DF> first, second;

  HWY_INLINE void Load(const float* at) { hn::LoadInterleaved2(DF(), at, first, second); }
  HWY_INLINE void Add(const std::byte* items) {
    const auto pairs = LoadItems(D32(), items);
    first = hn::Add(first, EvenValues<T>(pairs));
    second = hn::Add(second, OddValues<T>(pairs));
  }
  HWY_INLINE void Store(float* at) const { hn::StoreInterleaved2(first, second, DF(), at); }
};

/// Sums in the order of the columns.
struct OrderedSums {
  hn::Vec<DF> first, second;

  HWY_INLINE void Load(const float* at) {
    first = hn::LoadU(DF(), at);
    second = hn::LoadU(DF(), at + hn::Lanes(DF()));
  }
  HWY_INLINE void Store(float* at) const {
    hn::StoreU(first, DF(), at);
    hn::StoreU(second, DF(), at + hn::Lanes(DF()));
  }
};
template <>
struct Sums<float> : OrderedSums {
  HWY_INLINE void Add(const std::byte* items) {
    first = hn::Add(first, LoadItems(DF(), items));
    second = hn::Add(second, LoadItems(DF(), items + hn::Lanes(DF()) * sizeof(float)));
  }
};
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
/// One instruction widens them, exactly.
template <>
struct Sums<Float16> : OrderedSums {
  static HWY_INLINE hn::Vec<DF> Values(const std::byte* items) {
    const hn::Rebind<hwy::float16_t, DF> d16;
    return hn::PromoteTo(DF(), hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(items)));
  }
  HWY_INLINE void Add(const std::byte* items) {
    first = hn::Add(first, Values(items));
    second = hn::Add(second, Values(items + hn::Lanes(DF()) * kItemSize<Float16>));
  }
};
#endif

template <class T>
struct ColumnSums {
  static void Run(const MatrixRows<const std::byte>& in, const Tile& tile, float* sums) noexcept {
    for (std::size_t r = tile.row_begin; r < tile.row_end; r += kRows) {
      Panel panel;
      panel.count = std::min(kRows, tile.row_end - r);
      for (std::size_t i = 0; i < panel.count; ++i)
        panel.row[i] = in.Row(r + i) + tile.col_begin * kItem;
      AddRows(panel, tile.col_end - tile.col_begin, sums + tile.col_begin);
    }
  }

 private:
  static constexpr std::size_t kRows = 8;  // so many streams a core can follow
  static constexpr std::size_t kItem = kItemSize<T>;

  // How many they are is not known to the compiler, which would otherwise unroll the loop over them
  // and run out of registers.
  struct Panel {
    std::size_t count;
    const std::byte* row[kRows];
  };

  static HWY_INLINE void AddRows(const Panel& panel, std::size_t cols, float* sums) {
    const std::size_t lanes = 2 * hn::Lanes(DF());
    std::size_t c = 0;
    for (; c + 4 * lanes <= cols; c += 4 * lanes) AddLanes<4>(panel, c, sums + c);
    for (; c + lanes <= cols; c += lanes) AddLanes<1>(panel, c, sums + c);
    for (; c < cols; ++c) {
      for (std::size_t i = 0; i < panel.count; ++i) sums[c] += LoadItem<T>(panel.row[i], c);
    }
  }

  template <std::size_t kPairs>
  static HWY_INLINE void AddLanes(const Panel& panel, std::size_t col, float* sums) {
    const std::size_t lanes = 2 * hn::Lanes(DF());
    Sums<T> added[kPairs];
    for (std::size_t j = 0; j < kPairs; ++j) added[j].Load(sums + j * lanes);
    for (std::size_t i = 0; i < panel.count; ++i) {
      const std::byte* items = panel.row[i] + col * kItem;
      for (std::size_t j = 0; j < kPairs; ++j) added[j].Add(items + j * lanes * kItem);
    }
    for (std::size_t j = 0; j < kPairs; ++j) added[j].Store(sums + j * lanes);
  }
};

template <class... T>
constexpr ByType<ColumnSumFn> MakeTable(TypeList<T...>) {
  return {&ColumnSums<T>::Run...};
}

ByType<ColumnSumFn> Table() {
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
ByType<ColumnSumFn> ColumnSumTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(Table)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
