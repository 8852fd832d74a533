// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/kernels/scalar/items.h"

namespace narrowfloat {
namespace {

template <class T>
float AmaxOf(const MatrixRows<const std::byte>& in, const Tile& tile) noexcept {
  float amax = 0.0f;
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* row = in.Row(r);
    for (std::size_t c = tile.col_begin; c < tile.col_end; ++c) {
      const float magnitude = Magnitude(LoadItem<T>(row, c));
      amax = magnitude > amax ? magnitude : amax;  // false for NaN, so that NaN is ignored
    }
  }
  return amax;
}

template <class T>
void AddRows(const MatrixRows<const std::byte>& in, const Tile& tile, float* sums) noexcept {
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* row = in.Row(r);
    for (std::size_t c = tile.col_begin; c < tile.col_end; ++c)
      sums[c - tile.col_begin] += LoadItem<T>(row, c);
  }
}

}  // namespace

float KernelTable::Amax(DType dtype, const MatrixRows<const std::byte>& in,
                        const Tile& tile) const noexcept {
  return ForType(dtype, []<class T>() { return &AmaxOf<T>; })(in, tile);
}

void KernelTable::ColumnSum(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                            float* sums) const noexcept {
  ForType(dtype, []<class T>() { return &AddRows<T>; })(in, tile, sums);
}

float KernelTable::AmaxSum(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                           float* sums) const noexcept {
  KernelTable::ColumnSum(dtype, in, tile, sums);
  return KernelTable::Amax(dtype, in, tile);
}

void KernelTable::ColumnAmax(DType dtype, const MatrixRows<const std::byte>& in, const Tile& tile,
                             float* amaxes) const noexcept {
  for (std::size_t c = tile.col_begin; c < tile.col_end; ++c)
    *amaxes++ = KernelTable::Amax(dtype, in, {tile.row_begin, tile.row_end, c, c + 1});
}

}  // namespace narrowfloat
