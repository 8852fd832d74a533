// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/kernels/scalar/tables.h"

namespace narrowfloat::scalar {
namespace {

template <class T>
float Amax(const MatrixRows<const std::byte>& in, const Tile& tile) noexcept {
  float amax = 0.0f;
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* row = in.Row(r);
    for (std::size_t c = tile.col_begin; c < tile.col_end; ++c) {
      const float magnitude = Magnitude(LoadItem<T>(row, c));
      amax = magnitude > amax ? magnitude : amax;  // false for NaN, which is thereby ignored
    }
  }
  return amax;
}

template <class T>
void ColumnSum(const MatrixRows<const std::byte>& in, const Tile& tile, float* sums) noexcept {
  for (std::size_t r = tile.row_begin; r < tile.row_end; ++r) {
    const std::byte* row = in.Row(r);
    for (std::size_t c = tile.col_begin; c < tile.col_end; ++c)
      sums[c - tile.col_begin] += LoadItem<T>(row, c);
  }
}

template <class T>
void ColumnAmax(const MatrixRows<const std::byte>& in, const Tile& tile, float* amaxes) noexcept {
  for (std::size_t c = tile.col_begin; c < tile.col_end; ++c)
    *amaxes++ = Amax<T>(in, {tile.row_begin, tile.row_end, c, c + 1});
}

template <class... T>
constexpr ByType<AmaxFn> MakeAmax(TypeList<T...>) {
  return {&Amax<T>...};
}
template <class... T>
constexpr ByType<ColumnSumFn> MakeColumnSum(TypeList<T...>) {
  return {&ColumnSum<T>...};
}
template <class... T>
constexpr ByType<AmaxSumFn> MakeAmaxSum(TypeList<T...>) {
  return {[](const MatrixRows<const std::byte>& in, const Tile& tile, float* sums) noexcept {
    ColumnSum<T>(in, tile, sums);
    return Amax<T>(in, tile);
  }...};
}

template <class... T>
constexpr ByType<ColumnAmaxFn> MakeColumnAmax(TypeList<T...>) {
  return {&ColumnAmax<T>...};
}

}  // namespace

ByType<ColumnAmaxFn> ColumnAmaxTable() {
  return MakeColumnAmax(FloatTypes{});
}
ByType<AmaxFn> AmaxTable() {
  return MakeAmax(FloatTypes{});
}
ByType<ColumnSumFn> ColumnSumTable() {
  return MakeColumnSum(FloatTypes{});
}
ByType<AmaxSumFn> AmaxSumTable() {
  return MakeAmaxSum(FloatTypes{});
}

}  // namespace narrowfloat::scalar
