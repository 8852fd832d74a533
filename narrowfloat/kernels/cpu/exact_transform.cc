// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/exact_transform.h"

#include <algorithm>
#include <array>
#include <bit>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/numerics/exact_sum.h"

namespace narrowfloat::cpu {
namespace {

using Group = std::array<float, kHadamardSize>;         // a column, after the sign mask is applied
using Outputs = std::array<double, kHadamardSize>;      // rounded to odd
using Lanes = std::array<std::int64_t, kHadamardSize>;  // one number per output

/// kNegates[k][j] is -1 if output j negates item k, else 0.
constexpr auto kNegates = [] {
  std::array<Lanes, kHadamardSize> negates{};
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    for (std::size_t j = 0; j < kHadamardSize; ++j)
      negates[k][j] = HadamardNegates(k, j, 0) ? -1 : 0;
  }
  return negates;
}();

/// Adds the finite items of a column without an error. Each of the 16 outputs is a fixed-point
/// number with 2^-149 as lowest bit. Its limbs are 32 bits apart and have 64 bits: a significand
/// fits in one limb, and carries are added only once, after all items.
class ColumnSums {
 public:
  explicit ColumnSums(const Group& group) {
    for (std::size_t k = 0; k < kHadamardSize; ++k) Add(group[k], kNegates[k]);
  }

  /// Returns the sums times kHadamardScale, rounded to odd: if bits are dropped, the last kept bit
  /// is set. A second rounding, to nearest at 31 bits or fewer, then equals one rounding of the
  /// sums. Zero is +0.
  Outputs Round() {
    for (std::size_t q = 0; q + 1 < kLimbs; ++q) Carry(q);
    const Lanes negative = MakeMagnitudes();
    Outputs sums;
    for (std::size_t j = 0; j < kHadamardSize; ++j) {
      const double magnitude = RoundMagnitude(j);
      sums[j] = negative[j] != 0 ? -magnitude : magnitude;
    }
    return sums;
  }

 private:
  static constexpr std::uint32_t kBits = 32;
  static constexpr std::int64_t kMask = 0xFFFFFFFF;
  // The largest item has 253 + 24 bits. A sum of 16 items has 4 more bits and a sign.
  static constexpr std::size_t kLimbs = 9;

  void Add(float item, const Lanes& negates) {
    const auto bits = std::bit_cast<std::uint32_t>(item);
    const std::uint32_t field = bits >> 23 & 0xFFu;
    const std::uint32_t significand = (bits & 0x7FFFFFu) | (field != 0 ? 0x800000u : 0u);
    const std::uint32_t place = std::max(field, 1u) - 1;
    const std::int64_t magnitude = std::int64_t{significand} << place % kBits;
    const std::int64_t term = (bits & kFloatSign) != 0 ? -magnitude : magnitude;
    Lanes& limb = limbs_[place / kBits];
    for (std::size_t j = 0; j < kHadamardSize; ++j) limb[j] += (term ^ negates[j]) - negates[j];
  }

  /// Keeps the lowest kBits of limb q in it, and adds the other bits to limb q + 1.
  void Carry(std::size_t q) {
    for (std::size_t j = 0; j < kHadamardSize; ++j) {
      limbs_[q + 1][j] += limbs_[q][j] >> kBits;
      limbs_[q][j] &= kMask;
    }
  }

  /// Replaces the sums by their magnitudes. Returns -1 for each negative sum, 0 for the others.
  /// Negates in two's complement: inverts all bits and adds 1. Requires: Carry was called for all
  /// limbs but the last.
  Lanes MakeMagnitudes() {
    Lanes negative, carry;
    for (std::size_t j = 0; j < kHadamardSize; ++j) {
      negative[j] = limbs_[kLimbs - 1][j] >> 63;
      carry[j] = negative[j] & 1;
    }
    for (Lanes& limb : limbs_) {
      for (std::size_t j = 0; j < kHadamardSize; ++j) {
        const std::int64_t digits = ((limb[j] ^ negative[j]) & kMask) + carry[j];
        carry[j] = digits >> kBits;
        limb[j] = digits & kMask;
      }
    }
    return negative;
  }

  /// Returns the scaled magnitude of an output: the first 33 to 53 bits of the sum, or all bits of
  /// a shorter sum, then zeros up to 53 bits. The last bit is set if a dropped bit is not zero.
  double RoundMagnitude(std::size_t j) const {
    constexpr int kDropped = 64 - 53, kLowest = -149 - 2;  // 2^kLowest: lowest bit, scaled
    static_assert(kHadamardScale == 0.25);
    std::size_t q = kLimbs - 1;
    while (q > 1 && limbs_[q][j] == 0) --q;
    auto upper = static_cast<std::uint64_t>(limbs_[q][j] << kBits | limbs_[q - 1][j]);
    if (upper == 0) return 0.0;
    std::int64_t below = 0;
    for (std::size_t i = 0; i + 1 < q; ++i) below |= limbs_[i][j];
    const int zeros = std::countl_zero(upper);
    upper <<= zeros;
    const bool is_inexact = below != 0 || (upper & ((1u << kDropped) - 1)) != 0;
    const std::uint64_t kept = upper >> kDropped | (is_inexact ? 1 : 0);
    const int exponent = static_cast<int>(kBits * (q - 1)) - zeros + kDropped + kLowest;
    // The product only sets the exponent and is exact.
    const auto power = std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
    return static_cast<double>(kept) * power;
  }

  std::array<Lanes, kLimbs> limbs_{};  // the lowest one first
};

/// Returns the sums of the items that are not finite. IEEE addition gives the same sums in any
/// order, and finite items do not change them.
Outputs AddSpecial(const Group& group) {
  Outputs sums{};
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    if (Magnitude(group[k]) <= kLargestFloat) continue;
    for (std::size_t j = 0; j < kHadamardSize; ++j)
      sums[j] += static_cast<double>(kNegates[k][j] != 0 ? -group[k] : group[k]);
  }
  return sums;
}

template <class T>
void TransformColumnInFixedPoint(const TransformRows& rows, std::size_t col,
                                 std::uint32_t sign_mask) {
  Group group;
  bool finite = true;
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    const float item = LoadItem<T>(rows.in[k], col);
    group[k] = (sign_mask >> k & 1u) != 0 ? -item : item;
    finite &= Magnitude(item) <= kLargestFloat;
  }
  const Outputs outputs = finite ? ColumnSums(group).Round() : AddSpecial(group);
  for (std::size_t j = 0; j < kHadamardSize; ++j) StoreOnce<T>(rows.out[j], col, outputs[j]);
}

}  // namespace

void TransformExactly(DType dtype, const TransformRows& rows, std::size_t col,
                      std::uint32_t sign_mask) noexcept {
  ForType(dtype, []<class T>() { return &TransformColumnInFixedPoint<T>; })(rows, col, sign_mask);
}

}  // namespace narrowfloat::cpu
