// SPDX-License-Identifier: Apache-2.0
// Compares each instruction set's micro-kernels for one scale with Encode: every pattern of
// bfloat16 and float16, fp32 with every exponent.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "narrowfloat/kernels/cpu/micro_kernels.h"
#include "narrowfloat/kernels/cpu/micro_test_items.h"
#include "narrowfloat/numerics/codec.h"

namespace narrowfloat::cpu {
namespace {

template <class P>
class UniformKernelsTest : public testing::Test {};
using Pairs = testing::Types<FormatAndItems<E4M3, float>, FormatAndItems<E4M3, Float16>,
                             FormatAndItems<E4M3, BFloat16>, FormatAndItems<E5M2, float>,
                             FormatAndItems<E5M2, Float16>, FormatAndItems<E5M2, BFloat16>>;
TYPED_TEST_SUITE(UniformKernelsTest, Pairs);

/// Returns scales of whole tensors: the smallest and the largest, those of usual amaxes, and scales
/// near float16's limit of RebiasedScale.
std::vector<float> UniformScales() {
  return {0x1p-149f, 0x1p-126f, 0x1.8p-100f, 3e-5f,     0.7f,           1.0f,
          3.14159f,  448.0f,    57344.0f,    0x1.8p14f, 0x1p15f,        0x1.FEp16f,
          0x1p17f,   0x1p40f,   0x1.5p100f,  0x1p127f,  0x1.FFFFFEp127f};
}

/// Encodes the patterns in `rows` runs of equal length. Returns a message for the first code that
/// differs from Encode's, or for a wrong state.
template <class P>
std::string UniformDifference(const Target& target, const UniformKernels& kernels, float scale,
                              const std::vector<std::uint32_t>& patterns, std::size_t rows,
                              bool nontemporal, bool with_copy, bool tabulated) {
  using F = typename P::Format;
  const std::size_t count = patterns.size() / rows;
  Items items(rows * count + 1, P::kBytes);
  Items codes(rows * (count + 64), 1), copies(rows * (count + 1), 1);
  std::uint32_t amax = 0;
  bool finite = true;
  for (std::size_t i = 0; i < rows * count; ++i) {
    items.Set(1 + i, patterns[i]);
    amax = Larger<P>(amax, patterns[i]);
    finite &= (patterns[i] & ~P::kSign) < P::kInfinity;
  }
  const MicroRuns runs{{items.At(1), items.At(1), codes.At(nontemporal ? 0 : 3), nontemporal,
                        with_copy ? copies.At(0) : nullptr},
                       rows,
                       static_cast<std::ptrdiff_t>(count * P::kBytes),
                       (count + 64) / 64 * 64,
                       count + 1};
  UniformState state;
  state.tables.scale = scale;
  if (tabulated) kernels.tabulate(state.tables);
  kernels.encode(runs, count, state);
  const std::uint32_t largest = state.largest;
  if (!state.all_finite) {
    const bool fits = finite && P::Value(amax) * scale <= kMaxValue<F>;
    const bool is_half_limit = std::is_same_v<typename P::Item, Float16> && scale >= 0x1p16f;
    if (fits && !is_half_limit) return fmt::format("{}: refused at {}", target.name, scale);
  } else if (!finite) {
    return fmt::format("{}: taken though not finite", target.name);
  }
  if (largest != amax) return fmt::format("largest {:#x}, expected {:#x}", largest, amax);
  for (std::size_t i = 0; i < rows * count; ++i) {
    const auto expected = static_cast<std::byte>(Encode<F>(P::Value(patterns[i]) * scale));
    const std::byte* of_codes = runs.first.codes + i / count * runs.code_stride;
    const std::byte* of_copy =
        with_copy ? runs.first.copy + i / count * runs.copy_stride : of_codes;
    for (const std::byte* codes_of : {of_codes, of_copy}) {
      if (codes_of[i % count] == expected) continue;
      return fmt::format("{}: item {:#x} under {}: {:#x}, expected {:#x}", target.name, patterns[i],
                         scale, static_cast<int>(codes_of[i % count]), static_cast<int>(expected));
    }
  }
  return "";
}

TYPED_TEST(UniformKernelsTest, CodesOfEveryPattern) {
  using P = TypeParam;
  const std::vector<std::uint32_t> all = P::Patterns();
  for (const Target& target : Targets()) {
    const UniformKernels& kernels = KernelsOf<P>(target).uniform;
    for (const float scale : UniformScales()) {
      std::vector<std::uint32_t> fits;
      for (const std::uint32_t pattern : all) {
        const std::uint32_t magnitude = pattern & ~P::kSign;
        if (magnitude >= P::kInfinity) continue;
        if (P::Value(magnitude) * scale <= kMaxValue<typename P::Format>) fits.push_back(pattern);
      }
      for (const bool tabulated : {false, true}) {
        const auto difference = [&](const std::vector<std::uint32_t>& patterns, bool nontemporal) {
          return UniformDifference<P>(target, kernels, scale, patterns, 1, nontemporal,
                                      !nontemporal, tabulated);
        };
        ASSERT_EQ(difference(all, true), "");
        ASSERT_EQ(difference(fits, true), "");
        ASSERT_EQ(difference(fits, false), "");
      }
    }
  }
}

TYPED_TEST(UniformKernelsTest, RunsOfEveryLength) {
  using P = TypeParam;
  std::mt19937 random(4);
  const std::vector<std::uint32_t> all = P::Patterns();
  for (const Target& target : Targets()) {
    for (std::size_t count = 1; count <= 2 * target.parts.micro->vector_bytes + 1; ++count) {
      for (const std::size_t rows : {std::size_t{1}, std::size_t{3}}) {
        std::vector<std::uint32_t> patterns;
        for (std::size_t i = 0; i < rows * count; ++i)
          patterns.push_back(all[random() % all.size()]);
        for (const bool with_copy : {false, true}) {
          ASSERT_EQ(UniformDifference<P>(target, KernelsOf<P>(target).uniform, 0.7f, patterns, rows,
                                         false, with_copy, true),
                    "")
              << rows << " runs of " << count;
        }
      }
    }
  }
}

template <class F>
class UniformTablesTest : public testing::Test {};
using Formats = testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(UniformTablesTest, Formats);

/// Compares looked-up codes with computed ones, which UniformKernelsTest compares with Encode. Uses
/// only scales from 1 to 2: products of normal numbers have the same mantissas under scales that
/// differ by a power of two.
TYPED_TEST(UniformTablesTest, GiveTheComputedCodesUnderEveryMantissa) {
  using F = TypeParam;
  using P = FormatAndItems<F, BFloat16>;  // other items have no tables
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
  constexpr std::uint32_t kStep = 1;
#else
  constexpr std::uint32_t kStep = 61;  // every mantissa takes ten minutes or more
#endif
  constexpr float kBelowAll = Decode<F>(1) * 0.125f;
  constexpr std::uint32_t kFirst = std::bit_cast<std::uint32_t>(kBelowAll) >> 16;
  constexpr std::uint32_t kEnd = (std::bit_cast<std::uint32_t>(kMaxValue<F>) >> 16) + 1;
  std::vector<std::uint16_t> items(kEnd - kFirst);
  std::iota(items.begin(), items.end(), static_cast<std::uint16_t>(kFirst));
  const auto* from = reinterpret_cast<const std::byte*>(items.data());
  std::vector<std::byte> computed(items.size()), looked_up(items.size());
  bool has_tables = false;
  for (const Target& target : Targets()) {
    if (target.name != "avx3_dl") continue;
    has_tables = true;
    const UniformKernels& kernels = KernelsOf<P>(target).uniform;
    for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += kStep) {
      UniformState state;
      UniformTables& tables = state.tables;
      tables.scale = std::bit_cast<float>((127u << 23) + mantissa);
      kernels.tabulate(tables);
      ASSERT_TRUE(tables.are_filled) << tables.scale;
      std::size_t count = items.size();
      while (P::Value(items[count - 1]) * tables.scale > kMaxValue<F>) --count;
      kernels.encode({{from, from, looked_up.data(), false}}, count, state);
      tables.are_filled = false;
      kernels.encode({{from, from, computed.data(), false}}, count, state);
      ASSERT_TRUE(state.all_finite) << tables.scale;
      ASSERT_EQ(std::memcmp(computed.data(), looked_up.data(), count), 0) << tables.scale;
    }
  }
  if (!has_tables) GTEST_SKIP() << "the tables need AVX-512 with VBMI, which this processor lacks";
}

/// Checks that NaN in one call changes no codes of the next call.
TYPED_TEST(UniformKernelsTest, StateIsKeptOverCalls) {
  using P = TypeParam;
  using F = typename P::Format;
  constexpr std::size_t kCount = 200;
  for (const Target& target : Targets()) {
    const UniformKernels& kernels = KernelsOf<P>(target).uniform;
    UniformState state;
    state.tables.scale = 3.0f;
    for (const std::uint32_t special : {P::kOne, P::kInfinity + 1u, P::kOne - 1u}) {
      Items items(kCount, P::kBytes), codes(kCount, 1);
      for (std::size_t i = 0; i < kCount; ++i)
        items.Set(i,
                  i == 77 ? special : P::kOne - P::kBinade + static_cast<std::uint32_t>(i % 100));
      kernels.encode({{items.At(0), items.At(0), codes.At(0), false, nullptr}, 1, 0, 0, 0}, kCount,
                     state);
      for (std::size_t i = 0; i < kCount; ++i) {
        const std::uint32_t expected = Encode<F>(P::Value(items.Get(i)) * 3.0f);
        ASSERT_EQ(std::to_integer<std::uint32_t>(*codes.At(i)), expected) << target.name << i;
      }
      ASSERT_EQ(state.all_finite, special == P::kOne) << target.name;
      ASSERT_EQ(state.largest, P::kOne) << target.name;
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cpu
