// SPDX-License-Identifier: Apache-2.0
// The amax of a tile, and the sums of its columns.
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/amax.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/amax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

ByType<AmaxFn> AmaxSlots() {
  return {};
}
ByType<ColumnSumFn> ColumnSumSlots() {
  return {};
}

#else

// Lanes are columns, so that each column's sum is taken in the order of the rows, as the oracle
// takes it.
template <class T>
struct ColumnSums {
  static void Run(const MatrixRows<const std::byte>& in, const Tile& tile, float* sums) noexcept {
    constexpr std::size_t kStaged = 64;
    for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
      const std::byte* row = in.Row(r);
      for (std::size_t c = tile.col_begin; c < tile.col_end; c += kStaged) {
        const std::size_t count = c + kStaged < tile.col_end ? kStaged : tile.col_end - c;
        float values[kStaged];
        for (std::size_t i = 0; i < count; ++i) values[i] = LoadItem<T>(row, c + i);
        for (std::size_t i = 0; i < count; ++i) sums[c + i] += values[i];
      }
    }
  }
};

template <class... T>
constexpr ByType<AmaxFn> MakeAmax(TypeList<T...>) {
  return {&AmaxTile<T>::Run...};
}
template <class... T>
constexpr ByType<ColumnSumFn> MakeColumnSums(TypeList<T...>) {
  return {&ColumnSums<T>::Run...};
}
ByType<AmaxFn> AmaxSlots() {
  return MakeAmax(FloatTypes{});
}
ByType<ColumnSumFn> ColumnSumSlots() {
  return MakeColumnSums(FloatTypes{});
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(AmaxSlots);
HWY_EXPORT(ColumnSumSlots);
namespace cpu {
ByType<AmaxFn> AmaxTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(AmaxSlots)[target]();
}
ByType<ColumnSumFn> ColumnSumTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(ColumnSumSlots)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
