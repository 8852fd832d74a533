// SPDX-License-Identifier: Apache-2.0
// Compares each instruction set's micro-kernels on blocks and columns with the scalar functions of
// numerics/.
// Items: every pattern of bfloat16 and float16 under every scale, fp32 with every exponent.
#include "narrowfloat/kernels/cpu/micro_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "narrowfloat/kernels/cpu/micro_test_items.h"
#include "narrowfloat/numerics/e8m0.h"

namespace narrowfloat::cpu {
namespace {

/// One format of codes and one type of items, with the scales of MX blocks.
template <class F, class T>
struct Pair : FormatAndItems<F, T> {
  using ItemType<T>::kInfinity;
  using ItemType<T>::Patterns;
  using ItemType<T>::Value;

  static std::uint32_t ScaleCode(std::uint32_t amax) {
    return EncodeE8M0Up(Value(amax) * (1.0f / kMaxValue<F>));
  }
  static std::byte Code(std::uint32_t pattern, std::uint32_t scale) {
    return static_cast<std::byte>(Encode<F>(Value(pattern) * DecodeE8M0Reciprocal(scale)));
  }
  /// Returns, for every scale code that an amax of this type gives, the largest such amax.
  static std::map<std::uint32_t, std::uint32_t> LargestAmaxes() {
    std::map<std::uint32_t, std::uint32_t> largest;
    for (const std::uint32_t pattern : Patterns()) {
      if (pattern >= kInfinity) continue;
      std::uint32_t& of_scale = largest[ScaleCode(pattern)];
      of_scale = std::max(of_scale, pattern);
    }
    return largest;
  }
};

struct Scales {
  alignas(64) std::byte scale_inv[kMicroCols * sizeof(float)];
  alignas(64) float scale[kMicroCols];
  alignas(64) std::uint32_t floor[kMicroCols];
  alignas(64) float multiplier[kMicroCols];
  MicroScales All() { return {scale_inv, scale, floor, multiplier}; }
  std::uint32_t Code(std::size_t i) const { return std::to_integer<std::uint32_t>(scale_inv[i]); }
  std::uint32_t Inverse(std::size_t i) const {
    std::uint32_t bits;
    std::memcpy(&bits, scale_inv + i * sizeof bits, sizeof bits);
    return bits;
  }
};

template <class P>
class MicroKernelsTest : public testing::Test {
 protected:
  static const FormatKernels& Kernels(const Target& target) { return KernelsOf<P>(target); }
  static const AmaxKernels& Amaxes(const Target& target) {
    return target.parts.micro->amax[static_cast<std::size_t>(kDTypeOf<typename P::Item>)];
  }
  static const ScaleKernels& ScalesOf(const Target& target, ScaleType rule) {
    return Kernels(target).scales[static_cast<std::size_t>(rule)];
  }
};
using Pairs = testing::Types<Pair<E4M3, float>, Pair<E4M3, Float16>, Pair<E4M3, BFloat16>,
                             Pair<E5M2, float>, Pair<E5M2, Float16>, Pair<E5M2, BFloat16>>;
TYPED_TEST_SUITE(MicroKernelsTest, Pairs);

TYPED_TEST(MicroKernelsTest, AmaxesOfBlocksIgnoreNaN) {
  using P = TypeParam;
  const std::vector<std::uint32_t> patterns = P::Patterns();
  std::mt19937 random(1);
  for (const Target& target : Targets()) {
    for (std::size_t length = 0; length < kAmaxLengths.size(); ++length) {
      const std::size_t block = kAmaxLengths[length], most = kMicroRun / block;
      const std::size_t lanes = std::min(target.parts.micro->vector_bytes / P::kBytes, most);
      for (std::size_t first = 0, blocks = 1; first < patterns.size(); first += blocks * 2) {
        blocks = first / 2 % most + 1;
        Items items(blocks * block + 1, P::kBytes), amaxes(2 * most, P::kBytes);
        std::vector<std::uint32_t> expected(blocks);
        bool finite = true;
        for (std::size_t i = 0; i < 2 * most; ++i) amaxes.Set(i, 0x1234);
        for (std::size_t j = 0; j < blocks; ++j) {
          for (std::size_t i = 0; i < block; ++i) {
            const bool rare = i == (first + j) % block || i == (first + 7 * j) % block;
            const std::size_t of =
                rare ? (first + 2 * j + i % 2) % patterns.size() : random() % 256;
            items.Set(1 + j * block + i, patterns[of]);
            finite &= (patterns[of] & ~P::kSign) < P::kInfinity;
            expected[j] = Larger<P>(expected[j], patterns[of]);
          }
        }
        ASSERT_EQ(this->Amaxes(target).of_blocks[length](items.At(1), blocks, amaxes.At(0)), finite)
            << target.name << " blocks of " << block << " from pattern " << first;
        for (std::size_t j = 0; j < blocks; ++j)
          ASSERT_EQ(amaxes.Get(j), expected[j])
              << target.name << " block " << j << " of " << blocks << " x " << block;
        for (std::size_t j = blocks; j % lanes != 0; ++j)
          ASSERT_EQ(amaxes.Get(j), 0) << target.name << " past " << blocks << " x " << block;
      }
    }
  }
}

TYPED_TEST(MicroKernelsTest, AmaxesOfColumnsAreStoredIfFiniteElseUpdated) {
  using P = TypeParam;
  const std::vector<std::uint32_t> patterns = P::Patterns();
  std::mt19937 random(2);
  for (const Target& target : Targets()) {
    const AmaxKernels& kernels = this->Amaxes(target);
    for (const std::size_t cols : {target.parts.micro->vector_bytes, kMicroCols}) {
      for (std::size_t count = 1; count <= kMxBlock + 1; ++count) {
        for (const bool finite : {true, false}) {
          Items items(count * cols + 1, P::kBytes), amaxes(cols, P::kBytes);
          std::vector<const std::byte*> rows;
          std::vector<std::uint32_t> expected(cols);
          for (std::size_t r = 0; r < count; ++r) {
            rows.push_back(items.At(1 + r * cols));
            for (std::size_t c = 0; c < cols; ++c) {
              std::uint32_t item = patterns[random() % patterns.size()];
              if (finite && (item & ~P::kSign) >= P::kInfinity) item = 1;
              items.Set(1 + r * cols + c, item);
              expected[c] = Larger<P>(expected[c], item);
            }
          }
          if (finite) {
            std::memset(amaxes.At(0), 0x7F, cols * P::kBytes);  // larger than any finite amax
            const ColumnRows all{rows.data(), count, rows[0], 64};
            EXPECT_TRUE(kernels.of_columns(all, cols, amaxes.At(0))) << target.name;
          } else {
            std::memset(amaxes.At(0), 0, cols * P::kBytes);
            const std::size_t some = count / 2 + 1;
            kernels.of_columns_of_all({rows.data(), some, rows[0], 64}, cols, amaxes.At(0));
            if (some < count)
              kernels.of_columns_of_all({rows.data() + some, count - some}, cols, amaxes.At(0));
          }
          for (std::size_t c = 0; c < cols; ++c)
            ASSERT_EQ(amaxes.Get(c), expected[c])
                << target.name << " column " << c << " of " << count << " rows";
        }
      }
    }
  }
}

TYPED_TEST(MicroKernelsTest, ColumnsWithInfinityOrNaNAreNotFinite) {
  using P = TypeParam;
  for (const Target& target : Targets()) {
    for (const std::uint32_t special : {P::kInfinity, P::kInfinity + 1}) {
      Items row(kMicroCols, P::kBytes), amaxes(kMicroCols, P::kBytes);
      row.Set(kMicroCols - 1, special | P::kSign);
      const std::byte* rows[] = {row.At(0)};
      EXPECT_FALSE(this->Amaxes(target).of_columns({rows, 1}, kMicroCols, amaxes.At(0)))
          << target.name;
    }
  }
}

TYPED_TEST(MicroKernelsTest, AmaxesOfTheBlocksOfARowAndOfItsColumns) {
  using P = TypeParam;
  const std::vector<std::uint32_t> patterns = P::Patterns();
  std::mt19937 random(3);
  for (const Target& target : Targets()) {
    const RowAmaxFn run = this->Amaxes(target).of_row;
    for (std::size_t blocks = 1; blocks <= kMicroBlocks; ++blocks) {
      const std::size_t cols = blocks * kMxBlock;
      Items row(cols + 1, P::kBytes), of_columns(cols, P::kBytes),
          of_blocks(2 * kMicroBlocks, P::kBytes);
      std::vector<std::uint32_t> columns(cols);
      for (int r = 0; r < 3; ++r) {
        std::vector<std::uint32_t> expected(blocks);
        for (std::size_t c = 0; c < cols; ++c) {
          std::uint32_t item = patterns[random() % patterns.size()];
          if ((item & ~P::kSign) >= P::kInfinity) item = 1;
          row.Set(1 + c, item);
          expected[c / kMxBlock] = Larger<P>(expected[c / kMxBlock], item);
          columns[c] = Larger<P>(columns[c], item);
        }
        ASSERT_TRUE(run(row.At(1), blocks, of_blocks.At(0), of_columns.At(0))) << target.name;
        for (std::size_t j = 0; j < blocks; ++j)
          ASSERT_EQ(of_blocks.Get(j), expected[j])
              << target.name << " block " << j << " of " << blocks;
      }
      for (std::size_t c = 0; c < cols; ++c)
        ASSERT_EQ(of_columns.Get(c), columns[c])
            << target.name << " column " << c << " of " << cols;
      for (const std::uint32_t special : {P::kInfinity, P::kInfinity + 1}) {
        row.Set(random() % cols + 1, special | P::kSign);
        EXPECT_FALSE(run(row.At(1), blocks, of_blocks.At(0), of_columns.At(0))) << target.name;
      }
    }
  }
}

TYPED_TEST(MicroKernelsTest, ScalesOfEveryAmax) {
  using P = TypeParam;
  std::vector<std::uint32_t> patterns = P::Patterns();
  std::erase_if(patterns, [](std::uint32_t p) { return p > P::kInfinity; });
  for (const Target& target : Targets()) {
    for (std::size_t first = 0; first < patterns.size(); first += kMicroCols) {
      Items amaxes(kMicroCols, P::kBytes);
      for (std::size_t i = 0; i < kMicroCols; ++i)
        amaxes.Set(i, patterns[std::min(first + i, patterns.size() - 1)]);
      const ScaleKernels& rule = this->ScalesOf(target, ScaleType::kE8M0);
      for (const ScalesFn run : {rule.of_blocks, rule.of_columns}) {
        Scales scales;
        run(amaxes.At(0), kMicroCols, {}, scales.All());
        for (std::size_t i = 0; i < kMicroCols; ++i)
          ASSERT_EQ(scales.Code(i), P::ScaleCode(amaxes.Get(i)))
              << fmt::format("{} amax {:#x}", target.name, amaxes.Get(i));
      }
    }
  }
}

TYPED_TEST(MicroKernelsTest, ZerosAreEncodedUnderPowersOfTwo) {
  using P = TypeParam;
  for (const Target& target : Targets()) {
    const FormatKernels& kernels = this->Kernels(target);
    const ScaleKernels& rule = this->ScalesOf(target, ScaleType::kE8M0);
    Items amaxes(kMicroCols, P::kBytes), items(kMicroCols, P::kBytes), codes(kMicroCols, 1);
    for (std::size_t i = 0; i < kMicroCols; ++i) items.Set(i, i % 3 == 0 ? P::kSign : 0);
    const auto check = [&](ScalesFn compute, EncodeFn encode, std::size_t count) {
      Scales scales;
      ASSERT_TRUE(compute(amaxes.At(0), count, {}, scales.All())) << target.name;
      encode({{items.At(0), items.At(0), codes.At(0), false}}, count, scales.All());
      for (std::size_t i = 0; i < kMicroCols; ++i)
        ASSERT_EQ(*codes.At(i), std::byte{static_cast<unsigned char>(i % 3 == 0 ? 0x80 : 0)})
            << target.name << " item " << i;
    };
    check(rule.of_blocks, kernels.encode_blocks[0].powers_of_two, kMicroBlocks);
    check(rule.of_columns, kernels.encode_columns.powers_of_two, kMicroCols);
  }
}

/// Returns options of fp32 scales: the defaults, powers of two, and amaxes that are raised.
const std::vector<ScaleRule>& Rules() {
  static const std::vector<ScaleRule> rules = {
      {},
      {.force_pow_2_scales = true},
      {.amax_epsilon = 0x1p-9f, .force_pow_2_scales = true, .overflow_scale = 65504.0f},
      {.amax_epsilon = 3e-40f, .overflow_scale = 0x1.FEp127f},
  };
  return rules;
}

TYPED_TEST(MicroKernelsTest, Float32ScalesOfEveryAmax) {
  using P = TypeParam;
  std::vector<std::uint32_t> patterns = P::Patterns();
  std::erase_if(patterns, [](std::uint32_t p) { return p > P::kInfinity; });
  for (const Target& target : Targets()) {
    for (const ScaleRule& rule : Rules()) {
      for (std::size_t first = 0; first < patterns.size(); first += kMicroCols) {
        Items amaxes(kMicroCols, P::kBytes);
        for (std::size_t i = 0; i < kMicroCols; ++i)
          amaxes.Set(i, patterns[std::min(first + i, patterns.size() - 1)]);
        const ScaleKernels& kernels = this->ScalesOf(target, ScaleType::kFloat32);
        for (const ScalesFn run : {kernels.of_blocks, kernels.of_columns}) {
          Scales scales;
          run(amaxes.At(0), kMicroCols, rule, scales.All());
          for (std::size_t i = 0; i < kMicroCols; ++i) {
            const float amax = P::Value(amaxes.Get(i));
            const float scale = ScaleFromAmax(amax, kMaxValue<typename P::Format>, rule);
            ASSERT_EQ(scales.Inverse(i), std::bit_cast<std::uint32_t>(1.0f / scale))
                << fmt::format("{} amax {:#x}", target.name, amaxes.Get(i));
          }
        }
      }
    }
  }
}

/// Codes of every pattern under every scale that an amax gives, as the scalar functions encode.
template <class P>
struct Expected {
  std::vector<std::uint32_t> patterns = P::Patterns();
  std::map<std::uint32_t, std::uint32_t> amaxes = P::LargestAmaxes();
  std::map<std::uint32_t, std::vector<std::byte>> codes;  // by scale, then by index of a pattern

  Expected() {
    for (const auto& [scale, amax] : amaxes) {
      for (const std::uint32_t pattern : patterns) codes[scale].push_back(P::Code(pattern, scale));
    }
  }
  static const Expected& Get() {
    static const Expected expected;
    return expected;
  }
};

/// Encodes every pattern under one scale, kMicroCols items at a time, and returns the first
/// difference. Encodes the first pattern, zero, in place of magnitudes above `amax`.
template <class P>
std::string DifferenceUnder(const Target& target, EncodeFn encode, std::size_t count,
                            MicroScales scales, std::uint32_t scale, std::uint32_t amax) {
  const Expected<P>& expected = Expected<P>::Get();
  for (const bool nontemporal : {false, true}) {
    for (std::size_t first = 0; first < expected.patterns.size(); first += kMicroCols) {
      Items items(kMicroCols + 1, P::kBytes), codes(kMicroCols + 64, 1);
      const std::size_t turn = first / kMicroCols;
      const std::size_t offset = (nontemporal ? turn * kNontemporalAlignment : turn) % 64;
      std::vector<std::size_t> index(kMicroCols);
      for (std::size_t i = 0; i < kMicroCols; ++i) {
        index[i] = std::min(first + i, expected.patterns.size() - 1);
        if ((expected.patterns[index[i]] & ~P::kSign) > amax) index[i] = 0;
        items.Set(1 + i, expected.patterns[index[i]]);
      }
      const MicroRun run{items.At(1), items.At(1), codes.At(offset), nontemporal, nullptr};
      encode({run}, count, scales);
      for (std::size_t i = 0; i < kMicroCols; ++i) {
        if (*codes.At(offset + i) == expected.codes.at(scale)[index[i]]) continue;
        return fmt::format("{} item {:#x} under scale code {:#x}: {:#x}, expected {:#x}",
                           target.name, expected.patterns[index[i]], scale,
                           static_cast<int>(*codes.At(offset + i)),
                           static_cast<int>(expected.codes.at(scale)[index[i]]));
      }
      if (offset + kMicroCols < kMicroCols + 64 && *codes.At(offset + kMicroCols) != std::byte{0})
        return fmt::format("{} writes past the end", target.name);
      if (offset > 0 && *codes.At(offset - 1) != std::byte{0})
        return fmt::format("{} writes before the beginning", target.name);
    }
  }
  return "";
}

TYPED_TEST(MicroKernelsTest, CodesOfEveryItemUnderEveryScale) {
  using P = TypeParam;
  for (const Target& target : Targets()) {
    const FormatKernels& kernels = this->Kernels(target);
    const ScaleKernels& e8m0 = this->ScalesOf(target, ScaleType::kE8M0);
    std::size_t simple = 0;
    for (const auto& entry : Expected<P>::Get().amaxes) {
      const std::uint32_t scale = entry.first, amax = entry.second;
      Items amaxes(kMicroCols, P::kBytes);
      for (std::size_t i = 0; i < kMicroCols; ++i) amaxes.Set(i, amax);
      const auto check = [&](ScalesFn compute, const EncodeKernels& encode, std::size_t count) {
        Scales scales;
        const bool fast = compute(amaxes.At(0), kMicroCols, {}, scales.All());
        simple += fast;
        const auto difference = [&](EncodeFn run, std::uint32_t largest) {
          return DifferenceUnder<P>(target, run, count, scales.All(), scale, largest);
        };
        if (fast) {
          ASSERT_EQ(difference(encode.powers_of_two, amax), "");
        }
        ASSERT_EQ(difference(encode.finite, amax), "");
        ASSERT_EQ(difference(encode.all, ~0u), "");
      };
      for (std::size_t length = 0; length < kBlockLengths.size(); ++length) {
        const std::size_t blocks = kMicroCols / kBlockLengths[length];
        check(e8m0.of_blocks, kernels.encode_blocks[length], blocks);
      }
      check(e8m0.of_columns, kernels.encode_columns, kMicroCols);
    }
    // The encoders for power-of-two scales support more than 8 of 10 scales.
    EXPECT_GT(simple * 10, 4 * Expected<P>::Get().amaxes.size() * 8) << target.name;
  }
}

/// Fills `count` items from `first` on with values of both signs and exponents from -6 to 5.
template <class P>
void FillWithValues(std::size_t first, std::size_t count, std::mt19937& random, Items& items) {
  for (std::size_t i = 0; i < count; ++i) {
    const float exponent = static_cast<float>(static_cast<int>(random() % 12) - 6);
    const float value = std::exp2(exponent) * (random() % 2 == 0 ? -1.37f : 1.8f);
    StoreItem<typename P::Item>(items.At(0), first + i, value);
  }
}

TYPED_TEST(MicroKernelsTest, CodesOfRowsUnderFloat32ScalesOfBlocks) {
  using P = TypeParam;
  constexpr std::size_t kRows = 3;
  std::mt19937 random(5);
  for (const Target& target : Targets()) {
    const ScaleKernels& rule = this->ScalesOf(target, ScaleType::kFloat32);
    for (std::size_t length = 0; length < kBlockLengths.size(); ++length) {
      const std::size_t block = kBlockLengths[length];
      const EncodeKernels& kernels = this->Kernels(target).encode_blocks[length];
      for (std::size_t blocks = 1; blocks <= 5; ++blocks) {
        const std::size_t cols = blocks * block;
        Items items(kRows * cols + 1, P::kBytes), amaxes(kMicroBlocks, P::kBytes);
        Items codes(kRows * cols + 64, 1), copies(kRows * cols + 64, 1);
        FillWithValues<P>(1, kRows * cols, random, items);
        for (const ScaleRule& options : Rules()) {
          const auto value = [&](std::size_t r, std::size_t c) {
            return std::abs(P::Value(items.Get(1 + r * cols + c)));
          };
          for (std::size_t j = 0; j < blocks; ++j) {
            std::size_t largest = 0, row = 0;
            for (std::size_t r = 0; r < kRows; ++r) {
              for (std::size_t c = j * block; c < (j + 1) * block; ++c) {
                if (value(r, c) > value(row, j * block + largest)) {
                  row = r;
                  largest = c - j * block;
                }
              }
            }
            amaxes.Set(j, items.Get(1 + row * cols + j * block + largest) & ~P::kSign);
          }
          Scales scales;
          const bool powers = rule.of_blocks(amaxes.At(0), blocks, options, scales.All());
          EXPECT_EQ(powers, options.force_pow_2_scales) << target.name;
          const MicroRuns runs{{items.At(1), items.At(1), codes.At(0), false, copies.At(0)},
                               kRows,
                               static_cast<std::ptrdiff_t>(cols * P::kBytes),
                               cols,
                               cols};
          for (const EncodeFn encode :
               {powers ? kernels.powers_of_two : nullptr, kernels.finite, kernels.all}) {
            if (encode == nullptr) continue;
            encode(runs, blocks, scales.All());
            for (std::size_t r = 0; r < kRows; ++r) {
              for (std::size_t c = 0; c < cols; ++c) {
                const float amax = P::Value(amaxes.Get(c / block));
                const float scale = ScaleFromAmax(amax, kMaxValue<typename P::Format>, options);
                const float item = P::Value(items.Get(1 + r * cols + c));
                const auto expected =
                    static_cast<std::byte>(Encode<typename P::Format>(item * scale));
                ASSERT_EQ(*codes.At(r * cols + c), expected)
                    << target.name << " row " << r << " column " << c << " blocks of " << block;
                ASSERT_EQ(*copies.At(r * cols + c), expected);
              }
            }
          }
        }
      }
    }
  }
}

TYPED_TEST(MicroKernelsTest, EachBlockAndEachColumnHasItsScale) {
  using P = TypeParam;
  std::mt19937 random(3);
  for (const Target& target : Targets()) {
    const FormatKernels& kernels = this->Kernels(target);
    const ScaleKernels& e8m0 = this->ScalesOf(target, ScaleType::kE8M0);
    const AmaxKernels& amax = this->Amaxes(target);
    const BlockAmaxFn amax_of_blocks = amax.of_blocks[IndexOf(kAmaxLengths, kMxBlock)];
    const std::size_t step = std::max(kMxBlock, target.parts.micro->vector_bytes);
    for (std::size_t cols = step; cols <= kMicroCols; cols += step) {
      const std::size_t blocks = cols / kMxBlock;
      Items items(cols + 1, P::kBytes), block_amaxes(2 * kMicroBlocks, P::kBytes),
          column_amaxes(kMicroCols, P::kBytes);
      FillWithValues<P>(1, cols, random, items);
      const std::byte* rows[] = {items.At(1)};
      Scales of_blocks, of_columns;
      ASSERT_TRUE(amax_of_blocks(items.At(1), blocks, block_amaxes.At(0)));
      ASSERT_TRUE(amax.of_columns({rows, 1}, cols, column_amaxes.At(0)));
      ASSERT_TRUE(e8m0.of_blocks(block_amaxes.At(0), blocks, {}, of_blocks.All()));
      ASSERT_TRUE(e8m0.of_columns(column_amaxes.At(0), cols, {}, of_columns.All()));
      for (std::size_t shorter = blocks - std::min<std::size_t>(blocks - 1, 1); shorter <= blocks;
           ++shorter) {
        for (const std::size_t offset : {1u, 0u, 16u, 32u, 48u}) {
          Items codes(cols + 64, 1);
          const MicroRun run{items.At(1), items.At(1), codes.At(offset), offset != 1, nullptr};
          kernels.encode_blocks[0].powers_of_two({run}, shorter, of_blocks.All());
          for (std::size_t i = 0; i < shorter * kMxBlock; ++i)
            ASSERT_EQ(*codes.At(offset + i),
                      P::Code(items.Get(1 + i), of_blocks.Code(i / kMxBlock)))
                << target.name << " item " << i << " of " << cols;
          ASSERT_EQ(*codes.At(offset + shorter * kMxBlock), std::byte{0}) << target.name;
        }
      }
      Items rowwise(cols + 64, 1), columnwise(cols + 64, 1);
      const std::size_t offset = cols / step * kNontemporalAlignment % 64;
      kernels.encode_both({items.At(1), items.At(1), rowwise.At(offset), true, columnwise.At(1)},
                          cols, of_blocks.All(), of_columns.All());
      for (std::size_t i = 0; i < cols; ++i) {
        ASSERT_EQ(*rowwise.At(offset + i), P::Code(items.Get(1 + i), of_blocks.Code(i / kMxBlock)))
            << target.name << " item " << i;
        ASSERT_EQ(*columnwise.At(1 + i), P::Code(items.Get(1 + i), of_columns.Code(i)))
            << target.name << " item " << i;
      }
    }
  }
}

TEST(TransposeTest, TransposesPatchesOfAnySizeAndWritesNothingElse) {
  std::mt19937 random(6);
  Items codes(kTransposedRun * kTransposedCols, 1);
  for (std::size_t i = 0; i < kTransposedRun * kTransposedCols; ++i)
    codes.Set(i, static_cast<std::uint32_t>(random() % 255 + 1));
  for (const Target& target : Targets()) {
    for (const bool nontemporal : {false, true}) {
      for (const std::size_t rows : {1u, 15u, 64u, 129u, 256u}) {
        for (const std::size_t cols : {1u, 16u, 100u, 128u}) {
          const std::size_t stride = rows + 3;
          Items out(cols * stride, 1);
          target.parts.micro->transpose(codes.At(0), rows, cols, out.At(0), stride, nontemporal);
          for (std::size_t i = 0; i < cols * stride; ++i) {
            const std::size_t c = i / stride, r = i % stride;
            ASSERT_EQ(out.Get(i), r < rows ? codes.Get(r * kTransposedCols + c) : 0)
                << target.name << " row " << r << " column " << c << " of " << rows << " x "
                << cols;
          }
        }
      }
    }
  }
}

TEST(CopyNontemporalTest, CopiesRunsOfAnyAlignmentAndNothingElse) {
  std::mt19937 random(4);
  Items from(512, 1);
  for (std::size_t i = 0; i < 512; ++i) from.Set(i, static_cast<std::uint32_t>(random() % 255 + 1));
  for (const Target& target : Targets()) {
    for (std::size_t offset = 0; offset < 65; ++offset) {
      for (const std::size_t count : {0u, 1u, 15u, 16u, 63u, 64u, 65u, 127u, 128u, 300u}) {
        Items to(512, 1);
        target.parts.micro->copy_nontemporal(from.At(offset % 7), count, to.At(offset));
        for (std::size_t i = 0; i < 512; ++i) {
          const bool inside = i >= offset && i < offset + count;
          ASSERT_EQ(to.Get(i), inside ? from.Get(offset % 7 + i - offset) : 0)
              << target.name << " offset " << offset << " count " << count << " byte " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cpu
