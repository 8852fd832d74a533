// SPDX-License-Identifier: Apache-2.0
// Compares each instruction set's micro-kernels of decoding with the scalar functions of numerics/:
// every code under scales of every exponent.
#include "narrowfloat/kernels/cpu/decode_kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "narrowfloat/kernels/cpu/micro_test_items.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat::cpu {
namespace {

using Pairs = testing::Types<
    FormatAndItems<E4M3, float>, FormatAndItems<E4M3, Float16>, FormatAndItems<E4M3, BFloat16>,
    FormatAndItems<E5M2, float>, FormatAndItems<E5M2, Float16>, FormatAndItems<E5M2, BFloat16>,
    FormatAndItems<E2M1, float>, FormatAndItems<E2M1, Float16>, FormatAndItems<E2M1, BFloat16>>;

/// Bytes that begin at a cache line.
struct Memory : Items {
  explicit Memory(std::size_t count) : Items(count, 1) {}
};

/// Returns scales of every sign and exponent, with the least and the largest mantissa and some in
/// between: also zeros, subnormals, infinity and NaN. They are in the order of their patterns.
std::vector<float> Scales() {
  std::vector<float> scales;
  for (std::uint32_t top = 0; top < 512; ++top) {
    for (const std::uint32_t mantissa : {0u, 1u, 0x2AAAABu, 0x400000u, 0x7FFFFFu})
      scales.push_back(std::bit_cast<float>(top << 23 | mantissa));
  }
  return scales;
}

template <class P>
class DecodeKernelsTest : public testing::Test {
 protected:
  using F = typename P::Format;
  using T = typename P::Item;
  static constexpr std::size_t kBytes = kItemSize<T>;
  static constexpr int kShift = kBits<F> == 8 ? 5 : 4;  // of the shortest blocks

  static const FormatDecoders& Kernels(const Target& target) {
    return target.parts.decode->formats[P::kFormat][static_cast<std::size_t>(kDTypeOf<T>)];
  }

  /// Returns `count` codes from `first` on. With `numbers`, zero replaces NaN and infinity.
  static std::vector<std::uint32_t> Codes(std::size_t count, std::uint32_t first, bool numbers) {
    std::vector<std::uint32_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) {
      codes[i] = (first + static_cast<std::uint32_t>(i)) & kCodeMask<F>;
      if (numbers && (codes[i] & (kSignCode<F> - 1u)) > F::kMaxCode) codes[i] = 0;
    }
    return codes;
  }
  static void Store(const std::vector<std::uint32_t>& codes, std::byte* to) {
    for (std::size_t i = 0; i < codes.size(); ++i) StoreCode<F>(to, i, codes[i]);
  }

  /// Returns a message for the first item that is not codes[i] times scale_of(i).
  template <class ScaleOf>
  static std::string Difference(const std::vector<std::uint32_t>& codes, const std::byte* items,
                                const ScaleOf& scale_of) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      alignas(4) std::byte expected[kBytes];
      StoreItem<T>(expected, 0, Decode<F>(codes[i]) * scale_of(i));
      if (std::memcmp(expected, items + i * kBytes, kBytes) == 0) continue;
      std::uint32_t want = 0, got = 0;
      std::memcpy(&want, expected, kBytes);
      std::memcpy(&got, items + i * kBytes, kBytes);
      return fmt::format("item {} code {:#x} scale {:#x}: {:#x}, expected {:#x}", i, codes[i],
                         std::bit_cast<std::uint32_t>(scale_of(i)), got, want);
    }
    return "";
  }
  static bool IsUntouched(const std::byte* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (from[i] != std::byte{0}) return false;
    }
    return true;
  }
};
TYPED_TEST_SUITE(DecodeKernelsTest, Pairs);

TYPED_TEST(DecodeKernelsTest, BlocksUnderEveryScale) {
  using Suite = DecodeKernelsTest<TypeParam>;
  const std::vector<float> all = Scales();
  for (const Target& target : Targets()) {
    for (const bool numbers : {true, false}) {
      for (int shift = Suite::kShift; shift <= 7; ++shift) {
        const std::size_t count = kDecodeRun - 2;
        const std::size_t blocks = ((count - 1) >> shift) + 1;
        for (std::size_t first = 0; first < all.size(); first += blocks) {
          std::vector<float> scales(kDecodeRun + kDecodePadding);
          // One scale, scales in sequence, and scales in another order.
          for (const std::size_t step : {0u, 1u, 97u}) {
            for (std::size_t j = 0; j < blocks; ++j)
              scales[j] = all[(first + j * step) % all.size()];
            const auto codes = Suite::Codes(count, static_cast<std::uint32_t>(first), numbers);
            Memory stored(kDecodeRun), items((kDecodeRun + 1) * Suite::kBytes);
            Suite::Store(codes, stored.At(1));
            Suite::Kernels(target).blocks({stored.At(1), items.At(Suite::kBytes)}, count,
                                          {scales.data(), shift});
            ASSERT_EQ(Suite::Difference(codes, items.At(Suite::kBytes),
                                        [&](std::size_t i) { return scales[i >> shift]; }),
                      "")
                << target.name << " blocks of " << (1 << shift) << " step " << step;
            ASSERT_TRUE(Suite::IsUntouched(items.At((1 + count) * Suite::kBytes), 2));
          }
        }
      }
    }
  }
}

/// Decodes short runs of several rows, with and without non-temporal stores.
TYPED_TEST(DecodeKernelsTest, RowsOfEveryLength) {
  using Suite = DecodeKernelsTest<TypeParam>;
  const std::vector<float> scales(kDecodeRun + kDecodePadding, 0x1.8p-3f);
  constexpr std::size_t kRows = 3, kStride = 256 * Suite::kBytes;
  for (const Target& target : Targets()) {
    for (std::size_t count = 2; count <= 130; count += 2) {
      for (const std::size_t offset : {1u, 16u, 32u, 48u, 64u}) {  // 1: stores through the caches
        Memory stored(kRows * 256), items(kRows * kStride + offset);
        const auto codes = Suite::Codes(count, 3, true);
        for (std::size_t r = 0; r < kRows; ++r) Suite::Store(codes, stored.At(r * 256));
        DecodeRuns runs{stored.At(0), items.At(offset), offset != 1, stored.At(0), kRows, 256, 256};
        runs.item_stride = kStride;
        Suite::Kernels(target).blocks(runs, count, {scales.data(), Suite::kShift});
        ASSERT_TRUE(Suite::IsUntouched(items.At(0), offset));
        for (std::size_t r = 0; r < kRows; ++r) {
          ASSERT_EQ(Suite::Difference(codes, items.At(offset + r * kStride),
                                      [&](std::size_t i) { return scales[i]; }),
                    "")
              << target.name << " row " << r << " of " << count;
          ASSERT_TRUE(
              Suite::IsUntouched(items.At(offset + r * kStride + count * Suite::kBytes), 64));
        }
      }
    }
  }
}

/// True if columns have factors: E5M2's smallest number is not a normal float16.
template <class P>
inline constexpr bool kHasFactors =
    kItemSize<typename P::Item> == 2 && !std::is_same_v<P, FormatAndItems<E5M2, Float16>>;

TYPED_TEST(DecodeKernelsTest, ColumnsUnderEveryScale) {
  using Suite = DecodeKernelsTest<TypeParam>;
  const std::vector<float> all = Scales();
  for (const Target& target : Targets()) {
    const FormatDecoders& kernels = Suite::Kernels(target);
    bool served = false;
    for (const bool numbers : {true, false}) {
      for (const bool powers : {true, false}) {
        for (std::size_t first = 0; first < all.size(); first += 5) {
          std::vector<float> scales(kDecodePlaces);
          std::vector<std::uint16_t> memory(2 * kDecodePlaces);
          const std::size_t count = kDecodeCols - first % 64;
          for (std::size_t i = 0; i < count; ++i)
            scales[i] = all[(first + i % 4 * (powers ? 5 : 1)) % all.size()];
          const auto codes = Suite::Codes(count, static_cast<std::uint32_t>(first), numbers);
          Memory stored(kDecodeCols), items(kDecodeCols * Suite::kBytes + 64);
          for (std::size_t i = 0; i < count; ++i)
            *stored.At(1 + i) = static_cast<std::byte>(codes[i]);
          DecodeColumns columns{scales.data(), memory.data()};
          columns.has_factors =
              kernels.factors != nullptr && kernels.factors(scales.data(), count, memory.data());
          served |= columns.has_factors;
          if (columns.has_factors && kBits<typename TypeParam::Format> == 8)
            columns.scales = nullptr;
          const std::size_t offset = first * kNontemporalAlignment % 64;
          kernels.columns({stored.At(1), items.At(offset), first % 2 == 0}, count, columns);
          ASSERT_EQ(
              Suite::Difference(codes, items.At(offset), [&](std::size_t i) { return scales[i]; }),
              "")
              << target.name << " scales from " << first;
        }
      }
    }
    EXPECT_EQ(served, kHasFactors<TypeParam>) << target.name;
  }
}

TYPED_TEST(DecodeKernelsTest, FactorsOfEveryStoredScale) {
  using Suite = DecodeKernelsTest<TypeParam>;
  for (const Target& target : Targets()) {
    const FormatDecoders& kernels = Suite::Kernels(target);
    constexpr bool kIsServed = kHasFactors<TypeParam> && kBits<typename TypeParam::Format> == 8;
    ASSERT_EQ(kernels.factors_of_e8m0 != nullptr, kIsServed) << target.name;
    if (!kIsServed) continue;
    for (std::uint32_t code = 0; code < 256; ++code) {
      for (const std::size_t count :
           {std::size_t{1}, std::size_t{31}, std::size_t{100}, kDecodeCols}) {
        std::vector<std::byte> stored(count, std::byte{127});
        stored[code % count] = static_cast<std::byte>(code);
        std::vector<float> scales;
        for (const std::byte scale : stored)
          scales.push_back(DecodeE8M0(std::to_integer<std::uint32_t>(scale)));
        std::vector<std::uint16_t> expected(2 * kDecodePlaces), factors(2 * kDecodePlaces);
        const bool has_factors = kernels.factors(scales.data(), count, expected.data());
        ASSERT_EQ(kernels.factors_of_e8m0(stored.data(), count, factors.data()), has_factors)
            << target.name << " " << code;
        for (std::size_t i = 0; has_factors && i < count; ++i)
          ASSERT_EQ(factors[i], expected[i]) << target.name << " " << code << " of " << count;
      }
    }
  }
}

TYPED_TEST(DecodeKernelsTest, OneScale) {
  using Suite = DecodeKernelsTest<TypeParam>;
  for (const Target& target : Targets()) {
    const FormatDecoders& kernels = Suite::Kernels(target);
    if (kernels.uniform == nullptr) continue;
    for (const float scale : Scales()) {
      for (const bool numbers : {true, false}) {
        const auto codes = Suite::Codes(kDecodeRun + 301, 0, numbers);
        Memory stored(codes.size()), items(codes.size() * Suite::kBytes + 16);
        Suite::Store(codes, stored.At(0));
        kernels.uniform({stored.At(0), items.At(16), true}, codes.size(), scale);
        ASSERT_EQ(Suite::Difference(codes, items.At(16), [&](std::size_t) { return scale; }), "")
            << target.name;
      }
    }
  }
}

TEST(DecodeScalesTest, EveryStoredScale) {
  std::vector<float> scales(256);
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  for (const Target& target : Targets()) {
    const auto decode = [&](ScaleType type, const void* stored, std::size_t count,
                            const ScaleFactors& factors) {
      target.parts.decode->scales[static_cast<std::size_t>(type)](
          static_cast<const std::byte*>(stored), count, factors, scales.data());
    };
    for (const std::size_t count : {1u, 7u, 64u, 256u}) {
      decode(ScaleType::kE8M0, codes.data(), count, {});
      for (std::uint32_t i = 0; i < count; ++i) ASSERT_EQ(bits(scales[i]), bits(DecodeE8M0(i)));
      for (const ScaleFactors& factors : {ScaleFactors{3e38f, 0x1p-12f}, {0.3f, 1.0f / 2688}}) {
        decode(ScaleType::kE4M3, codes.data(), count, factors);
        for (std::uint32_t i = 0; i < count; ++i) {
          const float expected = Decode<E4M3>(i) * factors.amax * factors.decode;
          ASSERT_TRUE(bits(scales[i]) == bits(expected) || expected != expected)
              << target.name << " code " << i;
        }
      }
    }
    const std::vector<float> all = Scales();
    decode(ScaleType::kFloat32, all.data(), 200, {});
    for (std::size_t i = 0; i < 200; ++i) ASSERT_EQ(bits(scales[i]), bits(all[i])) << target.name;
  }
}

TEST(DecodeTransposesTest, EveryPlace) {
  std::mt19937 random(4);
  Memory codes(kDecodeSide * 300), staged(kDecodeSide * kTransposedRun),
      patch(kDecodeSide * kDecodeSide);
  for (std::size_t i = 0; i < kDecodeSide * 300; ++i)
    *codes.At(i) = static_cast<std::byte>(random());
  for (const Target& target : Targets()) {
    target.parts.decode->stage_codes(codes.At(0), 300, kDecodeSide, 250, staged.At(0),
                                     kTransposedRun);
    target.parts.decode->transpose_codes(staged.At(0), kTransposedRun, kDecodeSide, patch.At(0));
    for (std::size_t line = 0; line < kDecodeSide; ++line) {
      for (std::size_t i = 0; i < kDecodeSide; ++i)
        ASSERT_EQ(*patch.At(i * kDecodeSide + line), *codes.At(line * 300 + i)) << target.name;
    }
  }
}

TEST(DecodeTransposesTest, RowsAreSplit) {
  for (const Target& target : Targets()) {
    for (const std::size_t rows : {std::size_t{1}, std::size_t{8}, kDecodeSide / 2}) {
      Memory patch(kDecodeSide * kDecodeSide), codes(kDecodeSide * kDecodeSide);
      for (std::size_t i = 0; i < kDecodeSide * kDecodeSide / 2; ++i)
        *codes.At(i) = *patch.At(i) = static_cast<std::byte>(i * 37 + i / 256);
      target.parts.decode->split_rows(patch.At(0), rows);
      for (std::size_t r = 0; r < 2 * rows; ++r) {
        for (std::size_t i = 0; i < kDecodeSide; ++i) {
          const auto byte = std::to_integer<std::uint32_t>(*codes.At(r / 2 * kDecodeSide + i));
          ASSERT_EQ(std::to_integer<std::uint32_t>(*patch.At(r * kDecodeSide + i)),
                    byte >> (r % 2 * 4) & 0xFu)
              << target.name << " row " << r << " of " << 2 * rows << " byte " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace narrowfloat::cpu
