// SPDX-License-Identifier: Apache-2.0
// Compares each instruction set's micro-kernels of items, and the operations that use them, with
// the reference: every pattern of 16 bits, fp32 with every exponent, many lengths.
#include "narrowfloat/kernels/cpu/item_kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "narrowfloat/kernels/cpu/float_flags.h"
#include "narrowfloat/kernels/cpu/micro_test_items.h"
#include "narrowfloat/kernels/scalar/items.h"

namespace narrowfloat::cpu {
namespace {

/// Returns the bits of a float, the same for every NaN.
std::uint32_t Bits(float value) {
  return std::bit_cast<std::uint32_t>(CanonicalNan(value));
}

/// Rows of items. The first row begins 2 bytes past the beginning of memory.
template <class T>
struct Matrix {
  Matrix(std::size_t rows, std::size_t cols, std::size_t gap = 0)
      : row_bytes((cols + gap) * kItemSize<T>), memory(rows * row_bytes + kOffset) {}
  static constexpr std::size_t kOffset = 2;

  std::byte* Row(std::size_t r) { return memory.data() + kOffset + r * row_bytes; }
  void Set(std::size_t r, std::size_t c, std::uint32_t pattern) {
    std::memcpy(Row(r) + c * kItemSize<T>, &pattern, kItemSize<T>);
  }
  float Value(std::size_t r, std::size_t c) { return LoadItem<T>(Row(r), c); }
  MatrixRows<std::byte> Rows() { return {Row(0), static_cast<std::ptrdiff_t>(row_bytes)}; }
  MatrixRows<const std::byte> ConstRows() { return {Row(0), Rows().row_stride}; }

  std::size_t row_bytes;
  std::vector<std::byte> memory;
};

/// Fills rows with random patterns. Without `with_nan`, replaces NaN by zero.
template <class T>
void Fill(std::size_t rows, std::size_t cols, bool with_nan, std::mt19937& random, Matrix<T>& in) {
  const std::vector<std::uint32_t> patterns = ItemType<T>::Patterns();
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      in.Set(r, c, patterns[random() % patterns.size()]);
      if (!with_nan && std::isnan(in.Value(r, c))) in.Set(r, c, 0);
    }
  }
}

template <class T>
class ItemKernelsTest : public testing::Test {
 protected:
  static const ItemKernels& Kernels(const Target& target) { return (*target.parts.items)[kType]; }
  static constexpr auto kType = static_cast<std::size_t>(kDTypeOf<T>);
};
using Types = testing::Types<float, Float16, BFloat16>;
TYPED_TEST_SUITE(ItemKernelsTest, Types);

TYPED_TEST(ItemKernelsTest, AmaxOfEveryPatternInEveryPlace) {
  using T = TypeParam;
  const std::vector<std::uint32_t> patterns = ItemType<T>::Patterns();
  constexpr std::size_t kMost = 4 * 64 + 35;
  for (const auto& target : Targets()) {
    Matrix<T> in(1, kMost);
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      const std::size_t count = i % kMost + 1, place = i * 7 % count;
      in.Set(0, place, patterns[i]);
      const float value = Magnitude(in.Value(0, place));
      ASSERT_EQ(this->Kernels(target).amax(in.Row(0), count), std::isnan(value) ? 0.0f : value)
          << target.name << " pattern " << patterns[i] << " at " << place << " of " << count;
      in.Set(0, place, 0);
    }
    EXPECT_EQ(this->Kernels(target).amax(in.Row(0), 0), 0.0f) << target.name;
  }
}

TYPED_TEST(ItemKernelsTest, AmaxOfALongRunReadsEveryPlaceOfIt) {
  using T = TypeParam;
  const std::size_t count = (std::size_t{65} << 10) / kItemSize<T> + 77;
  Matrix<T> in(1, count);
  std::uint32_t one = 0;
  const float value = 1.0f;
  StoreItem<T>(reinterpret_cast<std::byte*>(&one), 0, value);
  for (const auto& target : Targets()) {
    for (std::size_t place = 0; place < count; ++place) {
      in.Set(0, place, one);
      ASSERT_EQ(this->Kernels(target).amax(in.Row(0), count), value)
          << target.name << " at " << place;
      in.Set(0, place, 0);
    }
    ASSERT_EQ(this->Kernels(target).amax(in.Row(0), count), 0.0f) << target.name;
  }
}

TYPED_TEST(ItemKernelsTest, SumsOfColumnsInTheOrderOfRows) {
  using T = TypeParam;
  std::mt19937 random(1);
  for (const auto& target : Targets()) {
    for (std::size_t rows = 1; rows <= 33; ++rows) {
      for (const std::size_t cols : {kColumnUnit, 5 * kColumnUnit, 14 * kColumnUnit}) {
        const bool with_nan = (rows + cols / kColumnUnit) % 4 == 0;
        Matrix<T> in(rows, cols, 3);
        Fill<T>(rows, cols, with_nan, random, in);
        if (with_nan) in.Set(rows / 2, cols / 3, 0xFFFFFFFFu);
        std::vector<const std::byte*> pointers;
        for (std::size_t r = 0; r < rows; ++r) pointers.push_back(in.Row(r));
        std::vector<float> expected(cols);
        for (std::size_t c = 0; c < cols; ++c) expected[c] = static_cast<float>(c) * 0.37f;
        std::vector<float> sums = expected, sums_beside_amax = expected;
        float amax = 0.0f;
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t c = 0; c < cols; ++c) {
            expected[c] += in.Value(r, c);
            const float magnitude = Magnitude(in.Value(r, c));
            if (!(magnitude <= amax)) amax = magnitude;  // keeps NaN
          }
        }
        this->Kernels(target).add_rows(pointers.data(), rows, cols, sums.data(), nullptr);
        float largest = -1.0f;
        this->Kernels(target).add_rows(pointers.data(), rows, cols, sums_beside_amax.data(),
                                       &largest);
        ASSERT_TRUE(with_nan ? std::isnan(largest) : largest == amax)
            << target.name << " " << largest << " of " << amax;
        for (std::size_t c = 0; c < cols; ++c) {
          ASSERT_EQ(Bits(sums[c]), Bits(expected[c]))
              << target.name << " column " << c << " of " << rows << " x " << cols;
          ASSERT_EQ(Bits(sums_beside_amax[c]), Bits(expected[c])) << target.name << " column " << c;
        }
      }
    }
  }
}

TYPED_TEST(ItemKernelsTest, SumsOfEveryPattern) {
  using T = TypeParam;
  const std::vector<std::uint32_t> patterns = ItemType<T>::Patterns();
  for (const auto& target : Targets()) {
    Matrix<T> in(1, patterns.size());
    for (std::size_t c = 0; c < patterns.size(); ++c) in.Set(0, c, patterns[c]);
    const std::byte* row = in.Row(0);
    std::vector<float> sums(patterns.size());
    this->Kernels(target).add_rows(&row, 1, sums.size(), sums.data(), nullptr);
    for (std::size_t c = 0; c < sums.size(); ++c)
      ASSERT_EQ(Bits(sums[c]), Bits(0.0f + in.Value(0, c))) << target.name << " " << patterns[c];
  }
}

/// Fills a group with zeros and with items whose exponents differ by at most `spread`.
template <class T>
void FillWithin(int spread, std::size_t cols, std::mt19937& random, Matrix<T>& in) {
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    for (std::size_t c = 0; c < cols; ++c) {
      const int exponent = static_cast<int>(random() % static_cast<unsigned>(spread + 1));
      const float value = std::ldexp(1.0f + static_cast<float>(random() % 128) / 128, -exponent);
      const float item = random() % 8 == 0 ? 0.0f : value;
      StoreItem<T>(in.Row(k), c, random() % 2 == 0 ? item : -item);
    }
  }
}

/// Transforms a group and compares the columns that the micro-kernel does not leave to its caller.
/// Returns the number of columns that it leaves.
template <class T>
std::size_t CheckTransform(const std::string& name, const ItemKernels& kernels, std::size_t cols,
                           std::uint32_t sign_mask, Matrix<T>& in) {
  Matrix<T> expected(kHadamardSize, cols), out(kHadamardSize, cols, 1);
  ScalarKernels().Hadamard({kDTypeOf<T>, in.ConstRows(), {0, kHadamardSize, 0, cols}}, sign_mask,
                           expected.Rows());
  TransformRows rows;
  for (std::size_t k = 0; k < kHadamardSize; ++k) {
    rows.in[k] = rows.next[k] = in.Row(k);
    rows.out[k] = out.Row(k);
  }
  std::vector<std::uint16_t> inexact(kTransformCols);
  std::vector<std::byte> amaxes(kTransformCols * kItemSize<T>);
  inexact.resize(kernels.transform(rows, cols, sign_mask, inexact.data(), amaxes.data()));
  std::size_t skipped = 0;
  for (std::size_t c = 0; c < cols; ++c) {
    if (skipped < inexact.size() && inexact[skipped] == c) {
      ++skipped;
      continue;
    }
    for (std::size_t j = 0; j < kHadamardSize; ++j) {
      EXPECT_EQ(std::memcmp(out.Row(j) + c * kItemSize<T>, expected.Row(j) + c * kItemSize<T>,
                            kItemSize<T>),
                0)
          << name << " output " << j << " of column " << c << ": " << out.Value(j, c)
          << ", expected " << expected.Value(j, c);
    }
    float largest = 0.0f;
    for (std::size_t j = 0; j < kHadamardSize; ++j) {
      EXPECT_TRUE(std::isfinite(expected.Value(j, c))) << name << " column " << c;
      largest = std::max(largest, std::abs(expected.Value(j, c)));
    }
    EXPECT_EQ(LoadItem<T>(amaxes.data(), c), largest) << name << " column " << c;
  }
  EXPECT_EQ(skipped, inexact.size()) << name << ": indices must ascend";
  for (std::size_t j = 0; j < kHadamardSize; ++j)
    EXPECT_EQ(out.Row(j)[cols * kItemSize<T>], std::byte{0}) << name << " writes past the end";
  return skipped;
}

TYPED_TEST(ItemKernelsTest, TransformsOfEverySpread) {
  using T = TypeParam;
  std::mt19937 random(2);
  constexpr std::size_t kCols = 3 * kColumnUnit;
  for (const auto& target : Targets()) {
    for (int spread = 0; spread <= 60; ++spread) {
      for (const std::uint32_t mask : {0u, kHadamardSignMask, 0xFFFFu}) {
        Matrix<T> in(kHadamardSize, kCols);
        FillWithin<T>(spread, kCols, random, in);
        const std::size_t inexact =
            CheckTransform<T>(target.name, this->Kernels(target), kCols, mask, in);
        // Sums of items with such exponents are exact in binary64.
        const bool is_exact = spread <= (kItemSize<T> == 4 ? 25 : 37);
        ASSERT_TRUE(!is_exact || inexact == 0) << target.name << " " << inexact;
        ASSERT_FALSE(this->HasFailure());
      }
    }
  }
}

TYPED_TEST(ItemKernelsTest, TransformsOfTheFewestColumns) {
  using T = TypeParam;
  std::mt19937 random(5);
  for (const auto& target : Targets()) {
    const std::size_t cols = target.parts.micro->vector_bytes / 2;
    for (const int spread : {0, 14, 25}) {
      Matrix<T> in(kHadamardSize, cols);
      FillWithin<T>(spread, cols, random, in);
      EXPECT_EQ(CheckTransform<T>(target.name, this->Kernels(target), cols, kHadamardSignMask, in),
                0);
    }
  }
}

/// Bits of the mantissa of an item.
template <class T>
constexpr int kMantissaOf = std::countr_zero(ItemType<T>::kBinade);

TYPED_TEST(ItemKernelsTest, TransformsOfTiesThatTheLastBitBreaks) {
  using T = TypeParam;
  constexpr int kMantissa = kMantissaOf<T>;
  constexpr std::size_t kCols = kColumnUnit;
  // 13 * 1.5 + 2^(3-M) lies half way between two numbers of T, and the sum is 2^-(below+M) above
  // it. Binary64, whose last bit is 2^-48 there, loses 2^-49 and less; float16 has no numbers as
  // small.
  constexpr int kLost = std::is_same_v<T, Float16> ? 15 : 49 - kMantissa;
  for (const auto& target : Targets()) {
    for (const int below : {kLost - 1, kLost}) {
      Matrix<T> in(kHadamardSize, kCols);
      std::vector<float> group(kHadamardSize, 1.5f);
      group[3] = std::ldexp(1.0f, 3 - kMantissa);
      group[4] = std::ldexp(1.0f, -below) + std::ldexp(1.0f, -below - kMantissa);
      group[5] = -std::ldexp(1.0f, -below);
      for (std::size_t c = 0; c < kCols; ++c) {
        for (std::size_t k = 0; k < kHadamardSize; ++k)
          StoreItem<T>(in.Row(k), c, group[(k + c) % kHadamardSize]);
      }
      const std::size_t inexact =
          CheckTransform<T>(target.name, this->Kernels(target), kCols, 0, in);
      const bool is_exact = below < kLost || std::is_same_v<T, Float16>;
      EXPECT_EQ(inexact, is_exact ? 0 : kCols) << target.name << " 2^-" << below;
    }
  }
}

TYPED_TEST(ItemKernelsTest, TransformsThatRoundToInfinityAreGivenBack) {
  using T = TypeParam;
  constexpr std::size_t kCols = kColumnUnit;
  // A quarter of the sum is a tie: the largest number plus half of its last bit.
  constexpr int kLastBit = (std::is_same_v<T, Float16> ? 15 : 127) - kMantissaOf<T>;
  const float bit = std::ldexp(1.0f, kLastBit), largest = bit * ((2 << kMantissaOf<T>)-1);
  for (const auto& target : Targets()) {
    Matrix<T> in(kHadamardSize, kCols);
    for (std::size_t c = 0; c < kCols; ++c) {
      for (std::size_t k = 0; k < 4; ++k) StoreItem<T>(in.Row(k), c, largest);
      StoreItem<T>(in.Row(4 + c % 12), c, 2 * bit);
    }
    EXPECT_EQ(CheckTransform<T>(target.name, this->Kernels(target), kCols, 0, in), kCols)
        << target.name;
  }
}

TYPED_TEST(ItemKernelsTest, TransformsOfOneItemThatIsNotFiniteAreGivenBack) {
  using T = TypeParam;
  constexpr std::size_t kCols = 4 * kColumnUnit;
  for (const auto& target : Targets()) {
    for (const float item : {std::numeric_limits<float>::quiet_NaN(), -HUGE_VALF}) {
      for (std::size_t k = 0; k < kHadamardSize; ++k) {
        Matrix<T> in(kHadamardSize, kCols);
        for (std::size_t c = 0; c < kCols; ++c) StoreItem<T>(in.Row(c % kHadamardSize), c, 1.0f);
        StoreItem<T>(in.Row(k), 7 * k, item);
        EXPECT_EQ(
            CheckTransform<T>(target.name, this->Kernels(target), kCols, kHadamardSignMask, in), 1)
            << target.name << " row " << k << ": " << item;
      }
    }
  }
}

TYPED_TEST(ItemKernelsTest, TransformsWithSubnormalNumbersInOneStepAlone) {
  using T = TypeParam;
  constexpr std::size_t kCols = kColumnUnit;
  // A quarter of this is the smallest normal number.
  constexpr int kSmallest = (std::is_same_v<T, Float16> ? -14 : -126) + 2;
  for (const auto& target : Targets()) {
    // Only the items of the rows 0 and `distance` are not zero; they are equal or adjacent numbers.
    // One step of the transform adds and subtracts them. If they differ, one result is subnormal,
    // except for the largest exponents. Later steps add zeros to it. Distance 8 belongs to the last
    // step: then an output is subnormal, but no operand of the steps is.
    for (std::size_t distance = 1; distance < kHadamardSize; distance *= 2) {
      for (int exponent = kSmallest; exponent <= kSmallest + kMantissaOf<T> + 2; ++exponent) {
        const float item = std::ldexp(1.0f, exponent);
        for (const float step : {0.0f, 1.0f, -0.5f}) {
          Matrix<T> in(kHadamardSize, kCols);
          StoreItem<T>(in.Row(0), kCols / 2, item);
          StoreItem<T>(in.Row(distance), kCols / 2,
                       item + step * std::ldexp(item, -kMantissaOf<T>));
          for (const std::uint32_t mask : {0u, 1u})
            CheckTransform<T>(target.name, this->Kernels(target), kCols, mask, in);
        }
      }
    }
  }
}

TYPED_TEST(ItemKernelsTest, TransformsOfEveryPattern) {
  using T = TypeParam;
  std::mt19937 random(3);
  const std::vector<std::uint32_t> patterns = ItemType<T>::Patterns();
  constexpr std::size_t kCols = kTransformCols;
  for (const auto& target : Targets()) {
    for (std::size_t first = 0; first < patterns.size(); first += kCols) {
      Matrix<T> in(kHadamardSize, kCols);
      FillWithin<T>(4, kCols, random, in);
      for (std::size_t c = 0; c < kCols; ++c)
        in.Set(c % kHadamardSize, c, patterns[(first + c) % patterns.size()]);
      CheckTransform<T>(target.name, this->Kernels(target), kCols, kHadamardSignMask, in);
      ASSERT_FALSE(this->HasFailure());
    }
  }
}

TYPED_TEST(ItemKernelsTest, TransformsOfEveryExponent) {
  using T = TypeParam;
  std::mt19937 random(4);
  const std::vector<std::uint32_t> patterns = ItemType<T>::Patterns();
  constexpr std::size_t kCols = 2 * kColumnUnit;
  // Even columns: items of 8 binades. Odd columns: two adjacent patterns, whose sums nearly cancel.
  // From subnormal numbers up to infinity and NaN.
  const std::size_t positive = patterns.size() / 2;
  constexpr std::size_t kExponents = std::is_same_v<T, Float16> ? 32 : 256;
  const std::size_t binade = positive / kExponents;
  for (const auto& target : Targets()) {
    for (std::size_t first = 0; first + 8 * binade <= positive; first += binade) {
      Matrix<T> in(kHadamardSize, kCols);
      for (std::size_t c = 0; c < kCols; ++c) {
        const std::size_t numbers = c % 2 == 0 ? 8 * binade : 2;
        const std::size_t from = first + random() % (8 * binade - numbers + 1);
        for (std::size_t k = 0; k < kHadamardSize; ++k)
          in.Set(k, c, patterns[from + random() % numbers + random() % 2 * positive]);
      }
      CheckTransform<T>(target.name, this->Kernels(target), kCols, kHadamardSignMask, in);
      ASSERT_FALSE(this->HasFailure()) << "from pattern " << first;
    }
  }
}

TYPED_TEST(ItemKernelsTest, OperationsOnTilesMatchTheReference) {
  using T = TypeParam;
  constexpr DType kDType = kDTypeOf<T>;
  std::mt19937 random(4);
  for (const bool with_nan : {false, true}) {
    for (const std::size_t rows : {1u, 9u, 67u, 150u}) {
      for (const std::size_t cols : {1u, 31u, 64u, 100u, 1100u}) {
        Matrix<T> in(rows, cols + 5);
        Fill<T>(rows, cols + 5, with_nan, random, in);
        const TileItems items{kDType, in.ConstRows(), {rows / 3, rows, 3, 3 + cols}};
        const KernelTable& reference = ScalarKernels();
        for (const KernelTable* table : AvailableKernels()) {
          const auto sums_of = [&](const KernelTable& of, float* amax) {
            std::vector<float> sums(cols, 0.25f);
            of.ColumnSum(items, sums.data(), amax);
            return sums;
          };
          const float amax = reference.Amax(items);
          float largest = 0.0f;
          const std::vector<float> expected = sums_of(reference, nullptr);
          const std::vector<float> sums = sums_of(*table, nullptr);
          const std::vector<float> sums_beside_amax = sums_of(*table, &largest);
          std::vector<float> expected_amaxes(cols, 7.0f), amaxes(cols, 9.0f);
          reference.ColumnAmax(items, expected_amaxes.data());
          table->ColumnAmax(items, amaxes.data());
          EXPECT_EQ(table->Amax(items), amax) << table->name;
          EXPECT_EQ(largest, amax) << table->name;
          for (std::size_t c = 0; c < cols; ++c) {
            ASSERT_EQ(Bits(sums[c]), Bits(expected[c])) << table->name << " column " << c;
            ASSERT_EQ(Bits(sums_beside_amax[c]), Bits(expected[c])) << table->name << " " << c;
            ASSERT_EQ(amaxes[c], expected_amaxes[c]) << table->name << " column " << c;
          }
        }
      }
    }
  }
}

/// The items of two groups of rows. kSimilar: exponents that differ by at most 4, then a group of
/// zeros. kNumbers: numbers of every exponent and infinities. kAll: NaN too.
enum class Contents { kSimilar, kNumbers, kAll };

TYPED_TEST(ItemKernelsTest, TransformsOfTilesMatchTheReference) {
  using T = TypeParam;
  std::mt19937 random(6);
  constexpr std::size_t kRows = 2 * kHadamardSize;
  for (const Contents contents : {Contents::kSimilar, Contents::kNumbers, Contents::kAll}) {
    for (const std::size_t cols : {1u, 31u, 33u, 100u, 1100u}) {
      Matrix<T> in(kRows, cols + 5), expected(kRows, cols);
      if (contents == Contents::kSimilar) FillWithin<T>(4, cols + 5, random, in);
      if (contents != Contents::kSimilar)
        Fill<T>(kRows, cols + 5, contents == Contents::kAll, random, in);
      const auto transform = [&](const KernelTable& table, Matrix<T>& out) {
        return table.Hadamard({kDTypeOf<T>, in.ConstRows(), {0, kRows, 3, 3 + cols}},
                              kHadamardSignMask, out.Rows());
      };
      const float amax = transform(ScalarKernels(), expected);
      for (const KernelTable* table : AvailableKernels()) {
        Matrix<T> out(kRows, cols);
        EXPECT_EQ(transform(*table, out), amax) << table->name << " " << cols;
        for (std::size_t r = 0; r < kRows; ++r)
          ASSERT_EQ(std::memcmp(out.Row(r), expected.Row(r), cols * kItemSize<T>), 0)
              << table->name << " row " << r << " of " << cols << " columns";
      }
    }
  }
}

TEST(FloatFlagsTest, ReportInexactOperationsAndKeepTheThreadsFlags) {
  volatile float one = 1.0f, small = 0x1p-60f, half = 0.5f, largest = 0x1p127f, sum = 0.0f;
  for (const bool is_set : {false, true}) {
    std::feclearexcept(FE_ALL_EXCEPT);
    if (is_set) sum = one + small;
    {
      FloatFlags flags;
      sum = one + half;
      EXPECT_FALSE(flags.AreSet(FloatFlags::kInexact));
      sum = one + small;
      EXPECT_TRUE(flags.AreSet(FloatFlags::kInexact));
      flags.Clear();
      EXPECT_FALSE(flags.AreSet(FloatFlags::kInexact));
      sum = largest + largest;
      EXPECT_TRUE(flags.AreSet(FloatFlags::kInexact));
    }
    EXPECT_EQ(std::fetestexcept(FE_INEXACT) != 0, is_set);
#if defined(__x86_64__)
    volatile float subnormal = 0x1p-130f;
    FloatFlags flags;
    sum = one + half;
    EXPECT_FALSE(flags.AreSet(FloatFlags::kSubnormalOperand));
    sum = subnormal + subnormal;
    EXPECT_TRUE(flags.AreSet(FloatFlags::kSubnormalOperand));
    EXPECT_FALSE(flags.AreSet(FloatFlags::kInexact));
#endif
  }
  static_cast<void>(sum);
}

}  // namespace
}  // namespace narrowfloat::cpu
