// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/numerics/hadamard.h"

#include <array>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/exact_sum.h"

namespace narrowfloat {
namespace {

using Group = std::array<float, kHadamardSize>;

bool IsFinite(float x) {
  return Magnitude(x) <= kLargestFloat;
}

/// Returns the signed, scaled sum of a group. Infinities and NaN give the result of IEEE addition
/// in any order.
double Output(const Group& group, std::size_t j, std::uint32_t sign_mask) {
  ExactSum sum;
  double special = 0.0;
  bool finite = true;
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const float term = HadamardNegates(k, j, sign_mask) ? -group[k] : group[k];
    if (IsFinite(term)) {
      sum.Add(term);
    } else {
      finite = false;
      special += static_cast<double>(term);
    }
  }
  constexpr int kPowerOfScale = -2;
  static_assert(kHadamardScale == 0.25);
  return finite ? sum.RoundToOdd(kPowerOfScale) : special;
}

template <class T>
void Transform(const TileItems& items, std::uint32_t sign_mask,
               const MatrixRows<std::byte>& out) noexcept {
  const Tile& tile = items.tile;
  for (std::size_t r = tile.row_begin; r < tile.row_end; r += kHadamardSize) {
    for (std::size_t c = tile.col_begin; c < tile.col_end; ++c) {
      Group group;
      for (std::size_t k = 0; k < kHadamardSize; ++k)
        group[k] = LoadItem<T>(items.in.Row(r + k), c);
      for (std::size_t j = 0; j < kHadamardSize; ++j) {
        StoreOnce<T>(out.Row(r + j - tile.row_begin), c - tile.col_begin,
                     Output(group, j, sign_mask));
      }
    }
  }
}

}  // namespace

float KernelTable::Hadamard(const TileItems& items, std::uint32_t sign_mask,
                            const MatrixRows<std::byte>& out) const noexcept {
  ForType(items.dtype, []<class T>() { return &Transform<T>; })(items, sign_mask, out);
  const Tile& tile = items.tile;
  return KernelTable::Amax({items.dtype,
                            {out.data, out.row_stride, out.row_offsets},
                            {0, tile.row_end - tile.row_begin, 0, tile.col_end - tile.col_begin}});
}

}  // namespace narrowfloat
