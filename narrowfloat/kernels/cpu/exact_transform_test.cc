// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cpu/exact_transform.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "narrowfloat/kernels/cpu/micro_test_items.h"

namespace narrowfloat::cpu {
namespace {

template <class T>
class ExactTransformTest : public ::testing::Test {
 protected:
  using Group = std::array<float, kHadamardSize>;

  /// Transforms a column of a group, whose other columns are zero, and compares it with the
  /// reference.
  void Check(const Group& group, std::uint32_t sign_mask) {
    constexpr std::size_t kCol = 3, kCols = 5;
    constexpr std::size_t kBytes = kCols * kItemSize<T>;
    constexpr auto kStride = static_cast<std::ptrdiff_t>(kBytes);
    std::byte in[kHadamardSize][kBytes] = {}, out[kHadamardSize][kBytes] = {};
    std::byte expected[kHadamardSize][kBytes] = {};
    TransformRows rows;
    for (std::size_t k = 0; k < kHadamardSize; ++k) {
      StoreItem<T>(in[k], kCol, group[k]);
      rows.in[k] = rows.next[k] = in[k];
      rows.out[k] = out[k];
    }
    ScalarKernels().Hadamard({kDTypeOf<T>, {in[0], kStride}, {0, kHadamardSize, kCol, kCol + 1}},
                             sign_mask, {expected[0] + kCol * kItemSize<T>, kStride});
    TransformExactly(kDTypeOf<T>, rows, kCol, sign_mask);
    for (std::size_t j = 0; j < kHadamardSize; ++j) {
      ASSERT_EQ(std::memcmp(out[j], expected[j], kBytes), 0)
          << "output " << j << ": " << LoadItem<T>(out[j], kCol) << ", expected "
          << LoadItem<T>(expected[j], kCol);
    }
  }

  std::uint32_t Random(std::uint32_t below) {
    return static_cast<std::uint32_t>(random_() % below);
  }

 private:
  std::mt19937 random_{7};
};
using ItemTypes = ::testing::Types<float, Float16, BFloat16>;
TYPED_TEST_SUITE(ExactTransformTest, ItemTypes);

TYPED_TEST(ExactTransformTest, AnyPatterns) {
  using Type = ItemType<TypeParam>;
  const std::vector<std::uint32_t> patterns = Type::Patterns();
  const auto count = static_cast<std::uint32_t>(patterns.size());
  for (int round = 0; round < 4000; ++round) {
    typename TestFixture::Group group;
    const bool finite = round % 4 != 0;  // 16 random float16 patterns are often not all finite
    for (float& item : group) {
      item = Type::Value(patterns[this->Random(count)]);
      if (finite && !std::isfinite(item)) item = 0.0f;
    }
    this->Check(group, this->Random(1u << kHadamardSize));
    ASSERT_FALSE(this->HasFailure()) << "round " << round;
  }
}

/// Checks items of three exponents, where the larger items cancel in some of the outputs.
TYPED_TEST(ExactTransformTest, EveryExponentBesideSmallerOnes) {
  using Type = ItemType<TypeParam>;
  constexpr std::uint32_t kExponents = Type::kInfinity / Type::kBinade;
  for (std::uint32_t first = 0; first < kExponents; ++first) {
    for (int round = 0; round < 40; ++round) {
      const std::uint32_t second = this->Random(first + 1), third = this->Random(second + 1);
      typename TestFixture::Group group;
      for (float& item : group) {
        const std::uint32_t kind = this->Random(4);
        const std::uint32_t exponent = kind == 2 ? second : kind == 3 ? third : first;
        const std::uint32_t mantissa = this->Random(2) == 0 ? 0 : this->Random(Type::kBinade);
        item = Type::Value(exponent * Type::kBinade + mantissa);
        if (this->Random(2) == 0) item = -item;
      }
      this->Check(group, 0);
      ASSERT_FALSE(this->HasFailure()) << "exponents " << first << ", " << second << ", " << third;
    }
  }
}

/// Checks sums half way between two numbers, and sums that differ from these by a power of two.
TYPED_TEST(ExactTransformTest, TiesAndWhatIsBesideThem) {
  using Type = ItemType<TypeParam>;
  constexpr int kMantissaBits = std::countr_zero(Type::kBinade);
  const auto smallest = static_cast<double>(Type::Value(1));
  const auto largest = static_cast<double>(Type::Value(Type::kInfinity - 1));
  for (double one = smallest; one <= largest; one *= 2) {
    const double half = std::ldexp(one, -kMantissaBits - 1);
    for (double beside = half / 2; beside >= smallest; beside /= 2) {
      for (const double sign : {-1.0, 0.0, 1.0}) {
        typename TestFixture::Group group{};
        group[1] = static_cast<float>(one);
        group[6] = static_cast<float>(half);
        group[11] = static_cast<float>(sign * beside);
        this->Check(group, 1u << 6);
        ASSERT_FALSE(this->HasFailure()) << one << " and " << sign << " * " << beside;
      }
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cpu
