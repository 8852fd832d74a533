// SPDX-License-Identifier: Apache-2.0
// Compares each instruction set's micro-kernels of 4-bit codes with the scalar functions of
// numerics/ and schemes/: every pattern of bfloat16 and float16, fp32 with every exponent.
#include "narrowfloat/kernels/cpu/pack_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "narrowfloat/kernels/cpu/micro_test_items.h"
#include "narrowfloat/schemes/mxfp4.h"
#include "narrowfloat/schemes/nvfp4.h"

namespace narrowfloat::cpu {
namespace {

using Rule = Nvfp4Scheme;

/// Returns amaxes of tensors: usual ones, the largest and the smallest, and those at which
/// two-level scales saturate or become 0.
std::vector<float> TensorAmaxes() {
  return {2688.0f, 1.0f, 5.3e-4f, 0x1p100f, 0x1.FFFFFEp127f, 0x1p-120f, 0x1p-149f, 0.0f};
}

/// Scales of kPackPlaces blocks or columns.
struct PlacedScales {
  alignas(64) std::byte scale_inv[kPackPlaces];
  alignas(64) float scale[kPackPlaces];
  PackScales All() { return {scale_inv, scale}; }
  std::uint32_t Code(std::size_t i) const { return std::to_integer<std::uint32_t>(scale_inv[i]); }
};

template <class P>
class PackKernelsTest : public testing::Test {
 protected:
  static const PackKernels& Kernels(const Target& target) {
    return (*target.parts.pack)[static_cast<std::size_t>(kDTypeOf<typename P::Item>)];
  }
  static const PackScaleKernels& ScalesOf(const Target& target, ScaleType rule) {
    return Kernels(target).scales[static_cast<std::size_t>(rule)];
  }
  /// Returns the patterns of magnitudes up to infinity, padded with zeros to whole calls.
  static std::vector<std::uint32_t> Amaxes() {
    std::vector<std::uint32_t> patterns = P::Patterns();
    std::erase_if(patterns, [](std::uint32_t p) { return p > P::kInfinity; });
    patterns.resize(RoundUp(patterns.size(), kPackPlaces), 0);
    return patterns;
  }
};
using ItemTypes = testing::Types<ItemType<float>, ItemType<Float16>, ItemType<BFloat16>>;
TYPED_TEST_SUITE(PackKernelsTest, ItemTypes);

TYPED_TEST(PackKernelsTest, TwoLevelScalesOfEveryAmax) {
  using P = TypeParam;
  const std::vector<std::uint32_t> patterns = this->Amaxes();
  Items amaxes(kPackPlaces, P::kBytes);
  for (const Target& target : Targets()) {
    const PackScaleKernels& rule = this->ScalesOf(target, ScaleType::kE4M3);
    for (std::size_t first = 0; first < patterns.size(); first += kPackPlaces) {
      TwoLevelFactors factors;
      std::vector<Rule::TensorState> states;
      for (std::size_t i = 0; i < kPackPlaces; ++i) {
        const std::vector<float> lines = TensorAmaxes();
        states.push_back(Rule::Prepare(lines[(first + i * 5) / 3 % lines.size()], {}));
        factors.Fill(i, i + 1, states.back());
        amaxes.Set(i, patterns[first + i]);
      }
      PlacedScales of_blocks, of_columns;
      const bool fits = rule.of_blocks(amaxes.At(0), kPackPlaces, factors, of_blocks.All());
      ASSERT_EQ(rule.of_columns(amaxes.At(0), kPackPlaces, factors, of_columns.All()), fits);
      for (std::size_t i = 0; i < kPackPlaces; ++i) {
        const float amax = P::Value(patterns[first + i]);
        const BlockScale expected = Rule::ScaleBlock(amax, states[i]);
        const auto what = fmt::format("{} amax {} in {}", target.name, amax, states[i].amax);
        ASSERT_EQ(of_blocks.Code(i), expected.scale_inv) << what;
        ASSERT_EQ(of_columns.Code(i), expected.scale_inv) << what;
        ASSERT_EQ(of_blocks.scale[i], expected.scale) << what;
        // Products below 7 round to at most 6, the largest code.
        const bool counts = fits && patterns[first + i] < P::kInfinity;
        ASSERT_TRUE(!counts || amax * expected.scale < 7) << what;
      }
    }
  }
}

TYPED_TEST(PackKernelsTest, ScalesOfUsualBlocksFit) {
  using P = TypeParam;
  Items amaxes(kPackPlaces, P::kBytes);
  constexpr std::uint32_t kPattern = P::kInfinity / 2;
  for (std::size_t i = 0; i < kPackPlaces; ++i)
    amaxes.Set(i, static_cast<std::uint32_t>(i % 2) * kPattern);
  const float largest = P::Value(kPattern);
  for (const Target& target : Targets()) {
    TwoLevelFactors factors;
    factors.Fill(0, kPackPlaces, Rule::Prepare(largest * 2, {}));
    PlacedScales scales;
    EXPECT_TRUE(this->ScalesOf(target, ScaleType::kE4M3)
                    .of_blocks(amaxes.At(0), kPackPlaces, factors, scales.All()));
    // The tensor's amax is smaller than the amaxes of its blocks.
    factors.Fill(0, kPackPlaces, Rule::Prepare(largest / 4, {}));
    EXPECT_FALSE(this->ScalesOf(target, ScaleType::kE4M3)
                     .of_blocks(amaxes.At(0), kPackPlaces, factors, scales.All()));
  }
}

TYPED_TEST(PackKernelsTest, E8M0ScalesOfEveryAmax) {
  using P = TypeParam;
  const std::vector<std::uint32_t> patterns = this->Amaxes();
  Items amaxes(kPackPlaces, P::kBytes);
  const auto unused = std::make_unique<TwoLevelFactors>();
  for (const Target& target : Targets()) {
    const PackScaleKernels& rule = this->ScalesOf(target, ScaleType::kE8M0);
    for (std::size_t first = 0; first < patterns.size(); first += kPackPlaces) {
      for (std::size_t i = 0; i < kPackPlaces; ++i) amaxes.Set(i, patterns[first + i]);
      PlacedScales of_blocks, of_columns;
      ASSERT_TRUE(rule.of_blocks(amaxes.At(0), kPackPlaces, *unused, of_blocks.All()));
      ASSERT_TRUE(rule.of_columns(amaxes.At(0), kPackPlaces, *unused, of_columns.All()));
      for (std::size_t i = 0; i < kPackPlaces; ++i) {
        const BlockScale expected = Mxfp4Scheme::ScaleBlock(P::Value(patterns[first + i]), {});
        ASSERT_EQ(of_blocks.Code(i), expected.scale_inv) << target.name << " amax " << first + i;
        ASSERT_EQ(of_columns.Code(i), expected.scale_inv) << target.name << " amax " << first + i;
        ASSERT_EQ(of_blocks.scale[i], expected.scale) << target.name << " amax " << first + i;
      }
    }
  }
}

std::uint32_t Nibble(std::byte packed, std::size_t i) {
  return std::to_integer<std::uint32_t>(packed) >> (i % 2 * 4) & 0xF;
}

/// Returns scales of units: usual ones, and some whose products exceed E2M1 or fp32.
std::vector<float> UnitScales() {
  return {1.0f, 0.37f, 3.0f, 448.0f, 2.2e-3f, 0x1p-20f, 1e30f, 1e-30f, 0x1p-140f, 0x1.FFFFFEp127f};
}

/// Returns `count` random bytes, and 128 more for the last step of a row.
std::vector<std::uint8_t> RandomRow(std::mt19937& random, std::size_t count) {
  std::vector<std::uint8_t> bytes(count + 128);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

/// Encodes every pattern, to nearest and stochastically, under scales that differ between units.
TYPED_TEST(PackKernelsTest, CodesOfRowsOfEveryPattern) {
  using P = TypeParam;
  std::vector<std::uint32_t> patterns = P::Patterns();
  patterns.resize(RoundUp(patterns.size(), kMicroRun), 0);
  const std::vector<float> scales_of = UnitScales();
  std::mt19937 random(1);
  Items items(kMicroRun + 1, P::kBytes), codes(kMicroRun + 64, 1);
  for (const Target& target : Targets()) {
    const PackRoundings<PackRowFn>& pack = this->Kernels(target).row;
    for (std::size_t turn = 0; turn < scales_of.size(); ++turn) {
      for (std::size_t first = 0; first < patterns.size(); first += kMicroRun) {
        float scale[kMicroRun / kPackUnit];
        for (std::size_t u = 0; u < kMicroRun / kPackUnit; ++u)
          scale[u] = scales_of[(turn + u) % scales_of.size()];
        std::vector<std::uint32_t> taken(kMicroRun);
        const std::vector<std::uint8_t> bytes = RandomRow(random, kMicroRun);
        const auto check = [&](PackRowFn run, bool nontemporal, const auto& expected) {
          for (std::size_t i = 0; i < kMicroRun; ++i) items.Set(1 + i, taken[i]);
          const std::size_t offset =
              nontemporal ? (turn + first / kMicroRun) * kNontemporalAlignment % 64 : 5;
          run({items.At(1), items.At(1), codes.At(offset), nontemporal}, kMicroRun / kPackUnit,
              scale, bytes.data());
          for (std::size_t i = 0; i < kMicroRun; ++i) {
            const float product = P::Value(taken[i]) * scale[i / kPackUnit];
            ASSERT_EQ(Nibble(*codes.At(offset + i / 2), i), expected(product, i)) << fmt::format(
                "{} item {:#x} scale {}", target.name, taken[i], scale[i / kPackUnit]);
          }
        };
        const auto nearest = [](float product, std::size_t) { return Encode<E2M1>(product); };
        for (std::size_t i = 0; i < kMicroRun; ++i) taken[i] = patterns[first + i];
        check(pack.all, false, nearest);
        const auto stochastic = [&](float product, std::size_t i) {
          return EncodeStochastic(product, bytes[i]);
        };
        check(pack.stochastic, true, stochastic);
        for (std::size_t i = 0; i < kMicroRun; ++i) {
          const bool fits = (taken[i] & ~P::kSign) < P::kInfinity &&
                            std::abs(P::Value(taken[i])) * scale[i / kPackUnit] < 7;
          if (!fits) taken[i] = 0;
        }
        check(pack.finite, true, nearest);
        check(pack.stochastic_finite, true, stochastic);
      }
    }
  }
}

/// Checks that runs of every length write their own bytes alone.
TYPED_TEST(PackKernelsTest, RowsOfEveryLength) {
  using P = TypeParam;
  std::mt19937 random(2);
  Items items(kMicroRun, P::kBytes);
  for (std::size_t i = 0; i < kMicroRun; ++i)
    items.Set(i, static_cast<std::uint32_t>(random()) & (P::kInfinity / 3 * 2));
  const std::vector<std::uint8_t> bytes = RandomRow(random, kMicroRun);
  float scale[kMicroRun / kPackUnit];
  for (float& of : scale) of = std::ldexp(1.0f, -static_cast<int>(random() % 40));
  for (const Target& target : Targets()) {
    for (std::size_t units = 1; units <= kMicroRun / kPackUnit; ++units) {
      for (const std::size_t offset : {1u, 16u, 32u, 48u, 64u}) {
        Items codes(kMicroRun, 1);
        for (std::size_t i = 0; i < kMicroRun; ++i) codes.Set(i, 0xEE);
        this->Kernels(target).row.all({items.At(0), items.At(0), codes.At(offset), offset != 1},
                                      units, scale, bytes.data());
        const std::size_t count = units * kPackUnit;
        for (std::size_t i = 0; i < count; ++i) {
          const float product = P::Value(items.Get(i)) * scale[i / kPackUnit];
          ASSERT_EQ(Nibble(*codes.At(offset + i / 2), i), Encode<E2M1>(product))
              << target.name << " item " << i << " of " << count;
        }
        ASSERT_EQ(codes.Get(offset - 1), 0xEE) << target.name << " before " << count;
        ASSERT_EQ(codes.Get(offset + count / 2), 0xEE) << target.name << " past " << count;
      }
    }
  }
}

/// Encodes every pattern in columns, each under its own scale, in strips of 2 to 32 rows.
TYPED_TEST(PackKernelsTest, CodesOfColumnsOfEveryPattern) {
  using P = TypeParam;
  const std::vector<std::uint32_t> patterns = P::Patterns();
  std::mt19937 random(3);
  const auto factors = std::make_unique<TwoLevelFactors>();
  for (const Target& target : Targets()) {
    const PackRoundings<PackColumnsFn>& pack = this->Kernels(target).columns;
    for (std::size_t first = 0, count = 2; first < patterns.size();
         first += count * kPackPlaces, count = count % 32 + 2) {
      Items items(count * kPackPlaces + 1, P::kBytes), amaxes(kPackPlaces, P::kBytes);
      std::vector<const std::byte*> rows;
      for (std::size_t r = 0; r < count; ++r) rows.push_back(items.At(1 + r * kPackPlaces));
      for (std::size_t c = 0; c < kPackPlaces; ++c)
        amaxes.Set(c, static_cast<std::uint32_t>(random()) % P::kInfinity);
      PlacedScales scales;
      this->ScalesOf(target, ScaleType::kE8M0)
          .of_columns(amaxes.At(0), kPackPlaces, *factors, scales.All());
      const std::vector<std::uint8_t> bytes = RandomRow(random, count * kTransposedCols);
      const auto check = [&](PackColumnsFn run, bool must_fit, const auto& expected) {
        for (std::size_t i = 0; i < count * kPackPlaces; ++i) {
          std::uint32_t item = patterns[std::min(first + i, patterns.size() - 1)];
          const float scale = DecodeE8M0Reciprocal(scales.Code(i % kPackPlaces));
          const bool fits =
              (item & ~P::kSign) < P::kInfinity && std::abs(P::Value(item)) * scale < 7;
          if (must_fit && !fits) item = 1;
          items.Set(1 + i, item);
        }
        Items codes(count / 2 * kTransposedCols, 1);
        run({rows.data(), rows.data(), count, kPackPlaces}, scales.scale, bytes.data(),
            codes.At(0));
        for (std::size_t i = 0; i < count * kPackPlaces; ++i) {
          const std::size_t r = i / kPackPlaces, c = i % kPackPlaces;
          const std::uint32_t item = items.Get(1 + i);
          const float product = P::Value(item) * DecodeE8M0Reciprocal(scales.Code(c));
          ASSERT_EQ(Nibble(*codes.At(r / 2 * kTransposedCols + c), r),
                    expected(product, bytes[r * kTransposedCols + c]))
              << fmt::format("{} item {:#x} row {} column {}", target.name, item, r, c);
        }
      };
      const auto nearest = [](float product, std::uint8_t) { return Encode<E2M1>(product); };
      check(pack.finite, true, nearest);
      check(pack.all, false, nearest);
      const auto stochastic = [](float product, std::uint8_t byte) {
        return EncodeStochastic(product, byte);
      };
      check(pack.stochastic_finite, true, stochastic);
      check(pack.stochastic, false, stochastic);
    }
  }
}

TYPED_TEST(PackKernelsTest, RandomBytesOfRowsAndColumns) {
  const RandomState state{0x123456789ABCDEF0, ~std::uint64_t{6}};
  for (const Target& target : Targets()) {
    const PackKernels& kernels = this->Kernels(target);
    for (const std::size_t count : {1u, 5u, 16u, 64u, 100u, 128u}) {
      for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 3,
                                        kColumnwiseRuns + 5, ~std::uint64_t{0} - 40}) {
        alignas(64) std::uint8_t out[(kTransposedCols + 16) * kRandomRun];
        kernels.random_of_row(state, first, 1, count, out);
        for (std::size_t i = 0; i < count; ++i) {
          const auto expected = RandomBytes(state, first + i);
          for (std::size_t k = 0; k < kRandomRun; ++k)
            ASSERT_EQ(out[i * kRandomRun + k], expected[k]) << target.name << " run " << i;
        }
        const std::uint64_t step = (std::uint64_t{1} << 31) + 3;
        kernels.random_of_columns(state, first, step, count, out);
        for (std::size_t c = 0; c < count; ++c) {
          const auto expected = RandomBytes(state, first + c * step);
          for (std::size_t r = 0; r < kRandomRun; ++r)
            ASSERT_EQ(out[r * kTransposedCols + c], expected[r]) << target.name << " column " << c;
        }
      }
    }
  }
}

/// Returns the error of one block's items under a candidate, added as in the reference.
float ErrorOf(const std::vector<float>& items, const BlockScale& scale,
              const Rule::TensorState& state) {
  float error = 0;
  for (const float x : items)
    error += Rule::Error(Encode<E2M1>(x * scale.scale), scale.scale_inv, x, state);
  return error;
}

bool SameError(float a, float b) {
  const bool special = !(a <= kLargestFloat) && !(b <= kLargestFloat);
  return special || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// Returns options of 4over6: both measures, exact and fast errors, both ranges of E4M3 scales.
std::vector<ScaleOptions> ErrorOptions() {
  std::vector<ScaleOptions> all;
  for (const FourOverSix measure :
       {FourOverSix::kMeanAbsoluteError, FourOverSix::kMeanSquaredError}) {
    for (const bool fast : {false, true}) {
      for (const float e4m3_max : {448.0f, 256.0f}) {
        ScaleOptions options;
        options.four_over_six = measure;
        options.four_over_six_fast_error = fast;
        options.e4m3_max = e4m3_max;
        all.push_back(options);
      }
    }
  }
  return all;
}

/// Compares blocks of 16 items, by rows and by columns: usual values, any finite values, and blocks
/// with an infinite or NaN item.
TYPED_TEST(PackKernelsTest, CandidatesErrorsAndChoices) {
  using P = TypeParam;
  std::mt19937 random(4);
  constexpr std::size_t kBlocks = kPackPlaces / 2;
  Items row(kMicroRun, P::kBytes), amaxes(kPackPlaces, P::kBytes);
  Items columns(kPackUnit * kPackPlaces, P::kBytes);
  std::vector<const std::byte*> rows;
  for (std::size_t r = 0; r < kPackUnit; ++r) rows.push_back(columns.At(r * kPackPlaces));
  const std::uint32_t binade = P::kBinade, one = P::kOne;
  for (const Target& target : Targets()) {
    const FourOverSixKernels& kernels = this->Kernels(target).four_over_six;
    for (const ScaleOptions& options : ErrorOptions()) {
      for (std::size_t turn = 0; turn < 30; ++turn) {
        // Any finite magnitudes, or those of six binades. The highest binade begins at 1, or the
        // lowest one at the smallest normal number. The columns have the blocks of the row, twice.
        const std::uint32_t range = turn % 3 == 0 ? P::kInfinity : 6 * binade;
        const std::uint32_t upper = turn % 5 == 4 ? 6 * binade : one;
        const float tensor_amax = P::Value(upper) * 3;
        const auto state = Rule::Prepare(tensor_amax, options);
        TwoLevelFactors factors;
        factors.Fill(0, kPackPlaces, state);
        const auto has_special = [&](std::size_t block) { return turn % 4 == 3 && block % 3 == 0; };
        const auto special_place = [](std::size_t block) { return block % kPackUnit; };
        for (std::size_t j = 0; j < kBlocks; ++j) {
          std::uint32_t amax = 0;
          for (std::size_t i = 0; i < kPackUnit; ++i) {
            const auto pattern = static_cast<std::uint32_t>(random());
            const std::uint32_t lowest = turn % 3 == 0 ? 0 : upper - 5 * binade;
            const bool is_special = has_special(j) && i == special_place(j);
            const std::uint32_t special = P::kInfinity + (j % 2 == 0 ? 0 : 1);  // NaN if j is odd
            const std::uint32_t magnitude = is_special ? special : lowest + pattern % range;
            const std::uint32_t item = magnitude | (pattern >> 31) * P::kSign;
            row.Set(j * kPackUnit + i, item);
            columns.Set(i * kPackPlaces + j, item);
            columns.Set(i * kPackPlaces + j + kBlocks, item);
            amax = Larger<P>(amax, item);
          }
          amaxes.Set(j, amax);
          amaxes.Set(j + kBlocks, amax);
        }
        ScaleCandidates candidates;
        CandidateErrors of_row, of_columns;
        const ErrorRule rule{state.full_range,
                             options.four_over_six == FourOverSix::kMeanSquaredError,
                             options.four_over_six_fast_error};
        kernels.candidates(amaxes.At(0), kPackPlaces, factors, candidates);
        const std::size_t blocks = turn % kBlocks + 1, count = turn % kPackUnit + 1;
        kernels.errors.of_row(row.At(0), blocks, factors, rule, candidates, of_row);
        kernels.errors.of_columns({rows.data(), rows.data(), count, kPackPlaces}, factors, rule,
                                  candidates, of_columns);
        PlacedScales chosen;
        kernels.choose_of_blocks(candidates, of_columns, kPackPlaces, chosen.All());
        for (std::size_t j = 0; j < kPackPlaces; ++j) {
          const std::size_t block = j % kBlocks;
          const auto what = fmt::format("{} turn {} block {}", target.name, turn, j);
          const auto expected = Rule::Candidates(P::Value(amaxes.Get(j)), state);
          std::vector<float> items;
          for (std::size_t i = 0; i < kPackUnit; ++i)
            items.push_back(P::Value(row.Get(block * kPackUnit + i)));
          const std::vector<float> some(items.begin(),
                                        items.begin() + static_cast<std::ptrdiff_t>(count));
          for (std::size_t k = 0; k < 2; ++k) {
            ASSERT_EQ(candidates.of[k].code[j], expected[k].scale_inv) << what;
            ASSERT_EQ(candidates.of[k].scale[j], expected[k].scale) << what;
            ASSERT_EQ(candidates.of[k].value[j], Decode<E4M3>(expected[k].scale_inv)) << what;
            ASSERT_TRUE(SameError(of_columns.of[k][j], ErrorOf(some, expected[k], state))) << what;
            const bool in_column = has_special(block) && special_place(block) < count;
            ASSERT_TRUE(!in_column || !std::isfinite(of_columns.of[k][j])) << what;
            if (j >= blocks) continue;
            ASSERT_TRUE(SameError(of_row.of[k][j], ErrorOf(items, expected[k], state))) << what;
            ASSERT_TRUE(!has_special(block) || !std::isfinite(of_row.of[k][j])) << what;
          }
          const bool first = of_columns.of[0][j] < of_columns.of[1][j];
          ASSERT_EQ(chosen.Code(j), expected[first ? 0 : 1].scale_inv) << what;
          ASSERT_EQ(chosen.scale[j], expected[first ? 0 : 1].scale) << what;
        }
        PlacedScales of_lanes;
        kernels.choose_of_columns(candidates, of_columns, kPackPlaces, of_lanes.All());
        for (std::size_t j = 0; j < kPackPlaces; ++j)
          ASSERT_EQ(of_lanes.Code(j), chosen.Code(j)) << target.name << " column " << j;
        // Encoded items show whether the columns' scales are in the right order.
        std::vector<std::byte> codes(kPackUnit / 2 * kTransposedCols);
        std::vector<std::uint8_t> unused(kPackUnit * kTransposedCols);
        this->Kernels(target).columns.all({rows.data(), rows.data(), kPackUnit, kPackPlaces},
                                          of_lanes.scale, unused.data(), codes.data());
        for (std::size_t i = 0; i < kPackUnit * kPackPlaces; ++i) {
          const std::size_t r = i / kPackPlaces, c = i % kPackPlaces;
          ASSERT_EQ(Nibble(codes[r / 2 * kTransposedCols + c], r),
                    Encode<E2M1>(P::Value(columns.Get(i)) * chosen.scale[c]))
              << target.name << " row " << r << " column " << c;
        }
      }
    }
  }
}

/// Checks that estimates compare as errors do, except in the blocks reported as undecided. Items:
/// random ones; with two mantissa bits, which often have equal errors; mostly zeros. 1 or 16 lines.
TYPED_TEST(PackKernelsTest, EstimatesCompareAsErrorsDo) {
  using P = TypeParam;
  constexpr std::size_t kBlocks = kPackPlaces - 1;  // the last vector is not full
  constexpr std::uint32_t kBinade = P::kBinade, kOne = P::kOne;
  std::mt19937 random(6);
  // The items of blocks in kPackUnit rows, and the transpose of the first row.
  Items squares(kMicroRun * kPackUnit, P::kBytes), columns(kMicroRun, P::kBytes);
  Items amaxes(kPackPlaces, P::kBytes);
  std::vector<const std::byte*> rows;
  for (std::size_t r = 0; r < kPackUnit; ++r) rows.push_back(columns.At(r * kPackPlaces));
  const PackedStrip strip{rows.data(), rows.data(), kPackUnit, kPackPlaces};
  for (const Target& target : Targets()) {
    const FourOverSixKernels& kernels = this->Kernels(target).four_over_six;
    const bool has_estimates = kernels.estimates[0].compare != nullptr;
    ASSERT_EQ(has_estimates, P::kBytes == 2 && target.name.starts_with("avx3")) << target.name;
    if (!has_estimates) continue;
    for (const ScaleOptions& options : ErrorOptions()) {
      for (std::size_t turn = 0; turn < 60; ++turn) {
        const auto what = fmt::format("{} turn {}", target.name, turn);
        std::vector<std::uint32_t> largest(kPackPlaces);
        for (std::size_t i = 0; i < kMicroRun * kPackUnit; ++i) {
          const auto pattern = static_cast<std::uint32_t>(random());
          std::uint32_t item = kOne - 4 * kBinade + pattern % (4 * kBinade);
          if (turn % 3 != 0) item &= ~(kBinade / 4 - 1);
          if (turn % 3 == 2 && pattern >> 28 != 0) item = 0;
          const std::size_t block = i % kMicroRun / kPackUnit;
          largest[block] = std::max(largest[block], item);
          item |= (pattern >> 31) * P::kSign;
          squares.Set(i, item);
          if (i < kMicroRun) columns.Set(i % kPackUnit * kPackPlaces + block, item);
        }
        for (std::size_t j = 0; j < kPackPlaces; ++j) amaxes.Set(j, largest[j]);
        const float usual = turn % 2 == 0 ? 672.0f : 1.0f + static_cast<float>(turn) / 128;
        // Estimates support no amaxes for which squares of errors leave fp32's normal numbers.
        const float tensor_amax = turn == 3 ? 0x1p-50f : turn == 9 ? 0x1p80f : usual;
        const auto state = Rule::Prepare(tensor_amax, options);
        TwoLevelFactors factors;
        factors.Fill(0, kPackPlaces, state);
        const ErrorRule rule{state.full_range,
                             options.four_over_six == FourOverSix::kMeanSquaredError,
                             options.four_over_six_fast_error};
        const EstimateKernels& estimate = kernels.estimates[rule.squares];
        ScaleCandidates candidates;
        const bool fits = kernels.candidates(amaxes.At(0), kPackPlaces, factors, candidates);
        ASSERT_TRUE(fits || tensor_amax != usual) << what;
        CandidateErrors estimates = {}, errors = {};
        const auto check = [&](std::size_t lines, std::size_t places) {
          std::uint8_t undecided[kPackPlaces];
          const std::size_t count =
              estimate.compare(factors, candidates, lines, places, estimates, undecided);
          ASSERT_LE(count, places);
          if (tensor_amax != usual) {
            ASSERT_EQ(count, places) << what;
            return;
          }
          if (turn % 3 == 0) {
            ASSERT_LE(count, places / 6) << what;
          }
          std::vector<bool> decided(places, true);
          for (std::size_t i = 0; i < count; ++i) decided.at(undecided[i]) = false;
          ASSERT_EQ(std::ranges::count(decided, false), count) << what;
          for (std::size_t j = 0; j < places; ++j) {
            if (!decided[j]) continue;
            ASSERT_EQ(estimates.of[0][j] < estimates.of[1][j], errors.of[0][j] < errors.of[1][j])
                << what << " lines " << lines << " place " << j;
          }
        };
        for (std::size_t line = 0; line < kPackUnit; ++line) {
          const std::byte* items = squares.At(line * kMicroRun);
          CandidateErrors of_line;
          const auto add = [&](RowErrorsFn compute, CandidateErrors& to) {
            compute(items, kBlocks, factors, rule, candidates, of_line);
            for (std::size_t k = 0; k < 2; ++k) {
              for (std::size_t j = 0; j < kBlocks; ++j) to.of[k][j] += of_line.of[k][j];
            }
          };
          add(kernels.errors.of_row, errors);
          add(estimate.errors.of_row, estimates);
          if (line != 0 && line + 1 != kPackUnit) continue;
          const CandidateErrors sums = estimates;
          check(line + 1, kBlocks);
          estimates = sums;
        }
        kernels.errors.of_columns(strip, factors, rule, candidates, errors);
        estimate.errors.of_columns(strip, factors, rule, candidates, estimates);
        check(1, kPackPlaces);
        if (this->HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cpu
