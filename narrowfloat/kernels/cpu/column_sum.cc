// SPDX-License-Identifier: Apache-2.0
// Sums a tile's columns. Lanes are columns, so that each column is added in the order of its rows,
// as in the reference.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include <algorithm>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/amax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

/// Returns the exact values of 16-bit items in the low halves of lanes, zeros above. NaN stays NaN.
/// float16: 8 ops; multiplies by 2^112 to correct the exponent, and sets fp32's largest exponent
/// for infinity and NaN.
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
    const auto value = hn::Mul(hn::BitCast(df, moved), hn::Set(df, kHalfRebias));
    const auto special = hn::BitCast(df, hn::Or(moved, hn::Set(d32, kFloatInfinity)));
    return hn::Or(hn::IfThenElse(hn::RebindMask(df, beyond), special, value),
                  hn::BitCast(df, sign));
  }
}

/// Returns the values of the even and of the odd 16-bit items of pairs.
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

/// Keeps a vector in a register. g++ would load it again for each use as another type, and loads
/// limit the speed of this kernel.
template <class V>
HWY_INLINE void KeepInRegister(V& vector) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL
  asm("" : "+v"(vector.raw));
#else
  static_cast<void>(vector);
#endif
}

/// Two vectors of sums. The items' type determines the order of columns in the lanes.
struct SumPair {
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

/// Sums of even columns in `first`, of odd ones in `second`. StoreInOrder restores the columns'
/// order.
template <class T>
struct Sums : SumPair {
  HWY_INLINE void StoreInOrder(float* at) const { hn::StoreInterleaved2(first, second, DF(), at); }
  HWY_INLINE void Add(const std::byte* items) {
    auto pairs = LoadItems(D32(), items);
    KeepInRegister(pairs);
    first = hn::Add(first, EvenValues<T>(pairs));
    second = hn::Add(second, OddValues<T>(pairs));
  }
};
struct SumsInOrder : SumPair {
  HWY_INLINE void StoreInOrder(float* at) const { Store(at); }
};
template <>
struct Sums<float> : SumsInOrder {
  HWY_INLINE void Add(const std::byte* items) {
    first = hn::Add(first, LoadItems(DF(), items));
    second = hn::Add(second, LoadItems(DF(), items + hn::Lanes(DF()) * sizeof(float)));
  }
};
#if HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
/// Widens by one instruction, exactly.
template <>
struct Sums<Float16> : SumsInOrder {
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

/// Collects the largest magnitude patterns, if kWithAmax.
template <class T, bool kWithAmax>
struct Largest {
  static constexpr std::size_t kLanes = hn::MaxLanes(MagnitudeTag<T>());
  hn::Vec<MagnitudeTag<T> > magnitudes;

  HWY_INLINE Largest() : magnitudes(hn::Zero(MagnitudeTag<T>())) {}
  HWY_INLINE void Update(const std::byte* items) {
    if constexpr (!kWithAmax) return;
    const MagnitudeTag<T> di;
    for (std::size_t i = 0; i < 2 * hn::MaxLanes(DF()); i += kLanes) {
      magnitudes = hn::Max(
          magnitudes, Magnitudes<T, Inputs::kFinite>(di, LoadItems(di, items + i * kItemSize<T>)));
    }
  }
  HWY_INLINE std::uint32_t Bits() const { return LargestLane(MagnitudeTag<T>(), magnitudes); }
};

/// Adds kRows rows at a time, so that sums are loaded and stored once for all of them.
template <class T>
class ColumnSums {
 public:
  static void Add(const MatrixRows<const std::byte>& in, const Tile& tile, float* sums) noexcept {
    AddTile<false>(in, tile, sums);
  }

  static float AddAndAmax(const MatrixRows<const std::byte>& in, const Tile& tile,
                          float* sums) noexcept {
    const std::uint32_t largest = AddTile<true>(in, tile, sums);
    if (largest <= kInfinityBits<T>) return MagnitudeValue<T>(largest);
    return AmaxTile<T>::Run(in, tile);  // there is a NaN, which it ignores
  }

  static void Order(float* sums, std::size_t cols) noexcept {
    Sums<T> moved;
    for (std::size_t c = 0; c < GroupedCols(cols); c += kGroup) {
      moved.Load(sums + c);
      moved.StoreInOrder(sums + c);
    }
  }

 private:
  static constexpr std::size_t kGroup = 2 * hn::MaxLanes(DF());  // columns of a Sums
  static_assert(kSumGroup % kGroup == 0);
  static constexpr std::size_t kRows = 8;  // sequences of reads that a core prefetches at once
  static constexpr std::size_t kItem = kItemSize<T>;

  // `count` is not a constant: the compiler would unroll the loop over rows and run out of
  // registers.
  struct RowGroup {
    std::size_t count;
    const std::byte* row[kRows];
  };

  /// Returns the number of columns in whole groups. Sums of the other columns are in order.
  static constexpr std::size_t GroupedCols(std::size_t cols) { return cols / kGroup * kGroup; }

  /// Adds the tile's rows. With kWithAmax, returns the largest magnitude pattern, which is above
  /// infinity's if an item is NaN.
  template <bool kWithAmax>
  static HWY_INLINE std::uint32_t AddTile(const MatrixRows<const std::byte>& in, const Tile& tile,
                                          float* sums) {
    const std::size_t cols = tile.col_end - tile.col_begin, whole = GroupedCols(cols);
    sums += tile.col_begin;
    Largest<T, kWithAmax> largest;
    for (std::size_t r = tile.row_begin; r < tile.row_end; r += kRows) {
      RowGroup rows;
      rows.count = std::min(kRows, tile.row_end - r);
      for (std::size_t i = 0; i < rows.count; ++i)
        rows.row[i] = in.Row(r + i) + tile.col_begin * kItem;
      std::size_t c = 0;
      for (; c + 4 * kGroup <= whole; c += 4 * kGroup) AddGroups<4>(rows, c, sums + c, largest);
      for (; c < whole; c += kGroup) AddGroups<1>(rows, c, sums + c, largest);
      if (c < cols) AddRest(rows, c, cols - c, sums + c, largest);
    }
    return largest.Bits();
  }

  template <std::size_t kGroups, bool kWithAmax>
  static HWY_INLINE void AddGroups(const RowGroup& rows, std::size_t col, float* kept,
                                   Largest<T, kWithAmax>& largest) {
    Sums<T> added[kGroups];
    for (std::size_t j = 0; j < kGroups; ++j) added[j].Load(kept + j * kGroup);
    for (std::size_t i = 0; i < rows.count; ++i) {
      const std::byte* items = rows.row[i] + col * kItem;
      for (std::size_t j = 0; j < kGroups; ++j) {
        added[j].Add(items + j * kGroup * kItem);
        largest.Update(items + j * kGroup * kItem);
      }
    }
    for (std::size_t j = 0; j < kGroups; ++j) added[j].Store(kept + j * kGroup);
  }

  /// Adds the columns that fill no group.
  template <bool kWithAmax>
  static void AddRest(const RowGroup& rows, std::size_t col, std::size_t cols, float* sums,
                      Largest<T, kWithAmax>& largest) {
    for (std::size_t i = 0; i < rows.count; ++i) {
      ZeroPadded<T, kGroup> items;
      items.Fill(rows.row[i] + col * kItem, cols);
      largest.Update(items.items);
      for (std::size_t c = 0; c < cols; ++c) sums[c] += LoadItem<T>(items.items, c);
    }
  }
};

template <class... T>
constexpr ByType<ColumnSumFn> MakeAddTable(TypeList<T...>) {
  return {&ColumnSums<T>::Add...};
}
template <class... T>
constexpr ByType<AmaxSumFn> MakeAddAndAmaxTable(TypeList<T...>) {
  return {&ColumnSums<T>::AddAndAmax...};
}
template <class... T>
constexpr ByType<SumOrderFn> MakeOrderTable(TypeList<T...>) {
  return {&ColumnSums<T>::Order...};
}

}  // namespace

ByType<ColumnSumFn> ColumnSumTable() {
  return MakeAddTable(FloatTypes{});
}

ByType<AmaxSumFn> AmaxSumTable() {
  return MakeAddAndAmaxTable(FloatTypes{});
}

ByType<SumOrderFn> SumOrderTable() {
  return MakeOrderTable(FloatTypes{});
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
