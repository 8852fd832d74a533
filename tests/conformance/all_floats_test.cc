// SPDX-License-Identifier: Apache-2.0
// Encodes all 2^32 floats on every backend. The expected codes follow from midpoints of a table in
// binary64. They form runs of equal codes, so that computing them takes little time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/reference_codec.h"
#include "tests/conformance/reference_quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

constexpr std::uint64_t kFloatCount = std::uint64_t{1} << 32;
constexpr std::size_t kChunk = std::size_t{1} << 16;  // fits the second-level cache

/// Stores the codes of kChunk floats, whose bits are first, first + 1, ... All have one sign.
void FillExpected(const ReferenceCodec& codec, const std::vector<std::uint32_t>& first_of_code,
                  std::uint32_t first, std::byte* codes) {
  const std::uint32_t sign = (first >> 31) != 0 ? codec.SignCode() : 0;
  const std::uint32_t begin = first & 0x7FFFFFFFu;
  const auto clamp = [&](std::uint64_t bits) {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(
        static_cast<std::int64_t>(bits) - static_cast<std::int64_t>(begin), 0, kChunk));
  };
  constexpr std::uint64_t kFirstNan = 0x7F800001u;
  for (std::uint32_t code = 0; code < first_of_code.size(); ++code) {
    const std::size_t from = clamp(first_of_code[code]);
    const bool last = code + 1 == first_of_code.size();
    const std::size_t to = clamp(last ? kFirstNan : first_of_code[code + 1]);
    if (from < to) std::memset(codes + from, static_cast<int>(sign | code), to - from);
  }
  std::memset(codes + clamp(kFirstNan), static_cast<int>(codec.format().nan),
              kChunk - clamp(kFirstNan));
}

/// Checks chunks until one fails or all are checked. `next` is the first float of the next chunk.
void CheckChunks(const SchemeInfo& scheme, const KernelTable& backend,
                 std::atomic<std::uint64_t>& next, std::string& failure, std::mutex& lock) {
  const ReferenceCodec& codec = ReferenceCodecOf(scheme.element);
  const std::vector<std::uint32_t> first_of_code = codec.FirstFloatBits();
  std::vector<std::uint32_t> in(kChunk);
  std::vector<std::byte> expected(kChunk);
  QuantizedBuffers out({.scheme = &scheme, .scale = 1.0f}, {1, static_cast<std::int64_t>(kChunk)});
  const ConstTensorView view{reinterpret_cast<const std::byte*>(in.data()),
                             DType::kFloat32,
                             out.view.shape,
                             {},
                             Device::kCpu};
  for (;;) {
    const std::uint64_t first = next.fetch_add(kChunk);
    if (first >= kFloatCount) return;
    for (std::size_t i = 0; i < kChunk; ++i) in[i] = static_cast<std::uint32_t>(first + i);
    FillExpected(codec, first_of_code, static_cast<std::uint32_t>(first), expected.data());
    Quantize(view, out.view, {.threads = 1, .kernels = &backend});
    const std::byte* got = out.Data(Role::kRowwiseData);
    if (std::memcmp(expected.data(), got, kChunk) == 0) continue;
    const auto at = std::mismatch(expected.begin(), expected.end(), got).first - expected.begin();
    const std::lock_guard guard(lock);
    failure = fmt::format("{} on {}: input {:08x}, expected {:02x}, got {:02x}", scheme.name,
                          backend.name, first + static_cast<std::uint64_t>(at),
                          static_cast<unsigned>(expected[static_cast<std::size_t>(at)]),
                          static_cast<unsigned>(got[at]));
    next = kFloatCount;
  }
}

struct Codec {
  const SchemeInfo* scheme;
  const KernelTable* backend;
};

std::vector<Codec> Codecs() {
  std::vector<Codec> codecs;
  for (const SchemeInfo& scheme : kSchemes) {
    for (const KernelTable* backend : AvailableKernels()) {
      if (scheme.block == kWholeTensor) codecs.push_back({&scheme, backend});
    }
  }
  return codecs;
}

std::string NameOf(const testing::TestParamInfo<Codec>& info) {
  return fmt::format("{}_{}", info.param.scheme->name, info.param.backend->name);
}

class AllFloatsTest : public testing::TestWithParam<Codec> {};

TEST_P(AllFloatsTest, EncodeToTheNearestCode) {
  std::atomic<std::uint64_t> next{0};
  std::mutex lock;
  std::string failure;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(
        [&] { CheckChunks(*GetParam().scheme, *GetParam().backend, next, failure, lock); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failure, "");
}

INSTANTIATE_TEST_SUITE_P(Codecs, AllFloatsTest, testing::ValuesIn(Codecs()), NameOf);

/// Blocks of floats under power-of-two scales: all magnitudes up to the format's largest. The first
/// item of each block is the largest, so that the scale is 1. Each block is then multiplied by its
/// own power of two. If the product is exact, the scale changes and the codes do not.
class BlocksOfFloats {
 public:
  BlocksOfFloats(const SchemeInfo& scheme, std::uint32_t sign)
      : codec_(ReferenceCodecOf(scheme.element)),
        first_of_code_(codec_.FirstFloatBits()),
        sign_(sign),
        cols_(static_cast<std::size_t>(scheme.block.cols)),
        in_(kChunk),
        expected_(kChunk),
        codes_(kChunk) {}

  std::uint32_t Largest() const {
    return std::bit_cast<std::uint32_t>(static_cast<float>(codec_.Value(codec_.format().largest)));
  }
  /// Returns the number of magnitudes in a chunk: one item of each block is the largest.
  std::size_t PerChunk() const { return kChunk / cols_ * (cols_ - 1); }

  /// Stores a chunk of magnitudes, whose bits are first, first + 1, ..., and their codes.
  void Fill(std::uint32_t first) {
    FillExpected(codec_, first_of_code_, sign_ | first, codes_.data());
    const std::uint32_t anchor = sign_ | Largest();
    const std::uint32_t anchor_code =
        (sign_ != 0 ? codec_.SignCode() : 0) | codec_.format().largest;
    for (std::size_t block = 0; block < kChunk / cols_; ++block) {
      const float power = Power(block, first);
      const std::size_t from = block * (cols_ - 1);
      std::uint32_t* in = &in_[block * cols_];
      in[0] = Times(anchor, power);
      expected_[block * cols_] = static_cast<std::byte>(anchor_code);
      for (std::size_t i = 1; i < cols_; ++i) {
        in[i] = Times(sign_ | (first + static_cast<std::uint32_t>(from + i - 1)), power);
      }
      std::copy_n(&codes_[from], cols_ - 1, &expected_[block * cols_ + 1]);
    }
  }

  const std::vector<std::uint32_t>& in() const { return in_; }
  const std::vector<std::byte>& expected() const { return expected_; }

 private:
  static std::uint32_t Times(std::uint32_t bits, float power) {
    return std::bit_cast<std::uint32_t>(std::bit_cast<float>(bits) * power);
  }
  /// Returns the block's power, or 1 if products of numbers from `first` on would be subnormal.
  static float Power(std::size_t block, std::uint32_t first) {
    const int spread = static_cast<int>(block % 81) - 40;
    const int exponent = static_cast<int>(first >> 23) - 127;
    return exponent + std::min(spread, 0) > -126 ? std::ldexp(1.0f, spread) : 1.0f;
  }

  const ReferenceCodec& codec_;
  std::vector<std::uint32_t> first_of_code_;
  std::uint32_t sign_;
  std::size_t cols_;
  std::vector<std::uint32_t> in_;
  std::vector<std::byte> expected_, codes_;
};

/// Checks chunks of magnitudes of one sign as CheckChunks does.
void CheckBlocks(const Codec& slot, std::uint32_t sign, std::atomic<std::uint64_t>& next,
                 std::string& failure, std::mutex& lock) {
  BlocksOfFloats blocks(*slot.scheme, sign);
  QuantizedBuffers out({.scheme = slot.scheme}, {1, static_cast<std::int64_t>(kChunk)});
  const ConstTensorView view{reinterpret_cast<const std::byte*>(blocks.in().data()),
                             DType::kFloat32,
                             out.view.shape,
                             {},
                             Device::kCpu};
  const std::uint64_t end = std::uint64_t{blocks.Largest()} + 1;
  for (;;) {
    const std::uint64_t first = next.fetch_add(blocks.PerChunk());
    if (first >= end) return;
    // The last chunk ends at the largest magnitude and overlaps the chunk before it.
    blocks.Fill(static_cast<std::uint32_t>(std::min(first, end - blocks.PerChunk())));
    Quantize(view, out.view, {.threads = 1, .kernels = slot.backend});
    const std::byte* got = out.Data(Role::kRowwiseData);
    if (std::memcmp(blocks.expected().data(), got, kChunk) == 0) continue;
    const auto at = static_cast<std::size_t>(
        std::mismatch(blocks.expected().begin(), blocks.expected().end(), got).first -
        blocks.expected().begin());
    const std::lock_guard guard(lock);
    failure =
        fmt::format("{} on {}: input {:08x}, expected {:02x}, got {:02x}", slot.scheme->name,
                    slot.backend->name, blocks.in()[at],
                    static_cast<unsigned>(blocks.expected()[at]), static_cast<unsigned>(got[at]));
    next = end;
  }
}

class AllFloatsInBlocksTest : public testing::TestWithParam<Codec> {};

TEST_P(AllFloatsInBlocksTest, EncodeToTheNearestCode) {
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    std::atomic<std::uint64_t> next{0};
    std::mutex lock;
    std::string failure;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back([&] { CheckBlocks(GetParam(), sign, next, failure, lock); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failure, "");
  }
}

std::vector<Codec> BlockCodecs() {
  std::vector<Codec> codecs;
  for (const SchemeInfo& scheme : kSchemes) {
    for (const KernelTable* backend : AvailableKernels()) {
      const bool is_mx = scheme.block.rows == 1 && scheme.element_bits == 8 &&
                         scheme.layout.scale_type == ScaleType::kE8M0;
      if (is_mx && backend->name != "scalar") codecs.push_back({&scheme, backend});
    }
  }
  return codecs;
}

INSTANTIATE_TEST_SUITE_P(Codecs, AllFloatsInBlocksTest, testing::ValuesIn(BlockCodecs()), NameOf);

/// Returns all bit patterns of a 16-bit type as a matrix. In order, close values share a block.
/// Shuffled, the values of a block span all magnitudes.
FloatTensor AllPatterns(DType dtype, bool shuffled) {
  FloatTensor in(dtype, {256, 256});
  for (std::uint32_t i = 0; i < 65536; ++i)
    in.SetBits(i, (shuffled ? i * 40503u + 12345u : i) & 0xFFFFu);  // odd factor: a permutation
  return in;
}

struct Patterns {
  const SchemeInfo* scheme;
  DType dtype;
};

class AllPatternsTest : public testing::TestWithParam<Patterns> {};

TEST_P(AllPatternsTest, QuantizeAsDefined) {
  for (const bool shuffled : {false, true}) {
    const FloatTensor in = AllPatterns(GetParam().dtype, shuffled);
    QuantSpec spec{.scheme = GetParam().scheme, .columnwise = true};
    // Infinities make the computed scale 1. Given scales map the items to other parts of the range.
    for (const float scale : {0.0f, 1.0f, 0x1.6p10f, 0x1p-12f}) {
      if (scale != 0.0f) {
        if (!spec.scheme->options.Has(Option::kScale)) break;
        spec.scale = scale;
      }
      QuantizedBuffers expected(spec, in.shape());
      ReferenceQuantize(in, expected);
      for (const KernelTable* backend : AvailableKernels()) {
        QuantizedBuffers got(spec, in.shape());
        Quantize(in.ConstView(), got.view, {.kernels = backend});
        EXPECT_EQ(Difference(expected, got), "")
            << fmt::format("{} {} on {}, {}", PrintQuantSpec(spec), DTypeName(in.dtype()),
                           backend->name, shuffled ? "shuffled" : "in order");
      }
    }
  }
}

std::vector<Patterns> PatternSlots() {
  std::vector<Patterns> slots;
  for (const SchemeInfo& scheme : kSchemes) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) slots.push_back({&scheme, dtype});
  }
  return slots;
}

std::string PatternName(const testing::TestParamInfo<Patterns>& info) {
  return fmt::format("{}_{}", info.param.scheme->name, DTypeName(info.param.dtype));
}

INSTANTIATE_TEST_SUITE_P(Slots, AllPatternsTest, testing::ValuesIn(PatternSlots()), PatternName);

}  // namespace
}  // namespace narrowfloat::conformance
