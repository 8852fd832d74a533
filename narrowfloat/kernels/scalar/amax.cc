// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/kernels/scalar/items.h"

namespace narrowfloat {
namespace {

template <class T>
float AmaxOf(const TileItems& items) noexcept {
  const Tile& tile = items.tile;
  float amax = 0.0f;
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* row = items.in.Row(r);
    for (std::size_t c = tile.col_begin; c < tile.col_end; ++c) {
      const float magnitude = Magnitude(LoadItem<T>(row, c));
      amax = magnitude > amax ? magnitude : amax;  // false for NaN, so that NaN is ignored
    }
  }
  return amax;
}

template <class T>
void AddRows(const TileItems& items, float* sums) noexcept {
  const Tile& tile = items.tile;
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* row = items.in.Row(r);
    for (std::size_t c = tile.col_begin; c < tile.col_end; ++c)
      sums[c - tile.col_begin] += LoadItem<T>(row, c);
  }
}

}  // namespace

float KernelTable::Amax(const TileItems& items) const noexcept {
  return ForType(items.dtype, []<class T>() { return &AmaxOf<T>; })(items);
}

void KernelTable::ColumnSum(const TileItems& items, float* sums, float* amax) const noexcept {
  ForType(items.dtype, []<class T>() { return &AddRows<T>; })(items, sums);
  if (amax != nullptr) *amax = KernelTable::Amax(items);
}

void KernelTable::ColumnAmax(const TileItems& items, float* amaxes) const noexcept {
  TileItems column = items;
  for (std::size_t c = items.tile.col_begin; c < items.tile.col_end; ++c) {
    column.tile.col_begin = c;
    column.tile.col_end = c + 1;
    *amaxes++ = KernelTable::Amax(column);
  }
}

}  // namespace narrowfloat
