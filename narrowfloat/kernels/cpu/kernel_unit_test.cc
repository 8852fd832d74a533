// SPDX-License-Identifier: Apache-2.0
// Tests the vector functions that kernels share, on every instruction set, against scalar code. An
// error in one of them fails here by its name, not only in a hundred tests of whole kernels.
// Compiled once per instruction set: each object registers its test.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/blocks-inl.h"
#include "narrowfloat/kernels/cpu/four_over_six-inl.h"
#include "narrowfloat/kernels/cpu/pack-inl.h"
#include "narrowfloat/kernels/cpu/transpose-inl.h"
#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/schemes/nvfp4.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes RandomVector(std::size_t count) {
  static std::mt19937 random(5);
  Bytes bytes(count);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

template <class D>
Bytes Stored(D d, hn::Vec<D> vector) {
  Bytes bytes(hn::Lanes(d) * sizeof(hn::TFromD<D>));
  hn::StoreU(vector, d, reinterpret_cast<hn::TFromD<D>*>(bytes.data()));
  return bytes;
}

void TestTransposeSquares() {
  const std::size_t rows = hn::Lanes(D8()), in_stride = kSquareSide + 3;
  const std::size_t out_stride = rows + 5;
  const Bytes in = RandomVector(rows * in_stride);
  Bytes out(kSquareSide * out_stride, 0xAA);
  TransposeSquares(in.data(), in_stride, out.data(), out_stride);
  for (std::size_t c = 0; c < kSquareSide; ++c) {
    for (std::size_t r = 0; r < out_stride && c * out_stride + r < out.size(); ++r) {
      const std::uint8_t expected = r < rows ? in[r * in_stride + c] : 0xAA;
      ASSERT_EQ(out[c * out_stride + r], expected) << "row " << r << " column " << c;
    }
  }
}

void TestTransposeQuads() {
  const D8 d8;
  const std::size_t quarter = hn::Lanes(d8) / 4;
  const Bytes in = RandomVector(hn::Lanes(d8));
  const Bytes out = Stored(d8, TransposeQuads(hn::LoadU(d8, in.data())));
  constexpr std::size_t kByteOfQuarter[] = {1, 3, 0, 2};
  for (std::size_t i = 0; i < in.size(); ++i)
    ASSERT_EQ(out[i], in[i % quarter * 4 + kByteOfQuarter[i / quarter]]) << "byte " << i;
}

void TestPackCodes() {
  const D8 d8;
  const hn::Repartition<std::uint16_t, D8> d16;
  const std::size_t count = 2 * hn::Lanes(d8);
  Bytes codes = RandomVector(count);
  std::vector<std::uint16_t> top(count);
  for (std::size_t i = 0; i < count; ++i)
    top[i] = static_cast<std::uint16_t>((codes[i] & 0xFu) << 12);
  const Bytes out =
      Stored(d8, PackCodes([&](std::size_t i) HWY_ATTR { return hn::LoadU(d16, top.data() + i); }));
  for (std::size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(out[i], (codes[2 * i] & 0xF) | (codes[2 * i + 1] & 0xF) << 4) << "byte " << i;
}

#if HWY_ARCH_X86
/// Checks every product that NearestWhole supports: below 7, the midpoint of 6 and 8.
void TestNearestWhole() {
  const DF df;
  const D32 d32;
  const auto one = hn::Set(df, 1.0f);
  const auto steps = hn::Iota(d32, 0);
  auto differs = hn::Zero(d32);
  for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(7.0f);
       bits += static_cast<std::uint32_t>(hn::Lanes(df))) {
    const auto value = hn::BitCast(df, hn::Add(steps, hn::Set(d32, bits)));
    const auto expected = hn::And(EncodeMagnitudes<E2M1, 6>(value), hn::Set(d32, 7u << 6));
    const auto low = hn::BitCast(d32, NearestWhole().Codes<6, false>(value, one, 0));
    const auto high = hn::BitCast(d32, NearestWhole().Codes<10, true>(value, one, 0));
    differs = hn::Or(differs, hn::Or(hn::Xor(low, expected), hn::Xor(high, hn::ShiftLeft<4>(low))));
  }
  ASSERT_TRUE(hn::AllTrue(d32, hn::Eq(differs, hn::Zero(d32))));
}
#endif

#if HWY_TARGET <= HWY_AVX3
void ExpectStochastic(float value, std::uint8_t byte) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  std::uint8_t random[2 * hn::MaxLanes(df)];
  const auto codes = [&]<bool kOdd>(std::bool_constant<kOdd>) {
    for (std::size_t i = 0; i < std::size(random); ++i)
      random[i] = i % 2 == kOdd ? byte : static_cast<std::uint8_t>(~byte);
    const auto got =
        StochasticWhole{random}.Codes<6, kOdd>(hn::Set(df, value), hn::Set(df, 1.0f), 0);
    const auto expected = static_cast<std::int32_t>(EncodeStochastic(value, byte) << 6);
    return hn::AllTrue(di, hn::Eq(got, hn::Set(di, expected)));
  };
  ASSERT_TRUE(codes(std::false_type()) && codes(std::true_type()))
      << value << " with byte " << +byte;
}

/// Checks products about each number that a byte raises to a number of E2M1, and above the largest.
void TestStochasticWhole() {
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (std::uint32_t code = 0; code <= E2M1::kMaxCode; ++code) {
      const float below = code == 0 ? 0.0f : Decode<E2M1>(code - 1), number = Decode<E2M1>(code);
      const float raised = number - static_cast<float>(byte) / 256 * (number - below);
      const auto bits = std::bit_cast<std::uint32_t>(raised);
      for (std::uint32_t i = bits - std::min(bits, 9u); i <= bits + 9; ++i) {
        const auto value = std::bit_cast<float>(i);
        ExpectStochastic(value, static_cast<std::uint8_t>(byte));
      }
    }
    for (const float value : {6.1f, 6.999f, 7.0f, 8.5f, 1e30f})
      ExpectStochastic(value, static_cast<std::uint8_t>(byte));
  }
}
#endif

#if HWY_TARGET == HWY_AVX3_DL
/// Encodes every bfloat16 within F under scale 1. Other powers of two have the same distances.
template <FloatFormat F>
void TestEncodeByTable() {
  const hn::Full512<std::uint16_t> d16;
  constexpr std::uint32_t kFloor =
      (EncodeRule<F>::kSmallestNormalField << BFloat16::kMantissaBits) - kStepsBelow<F>;
  const auto floor = hn::Set(d16, static_cast<std::uint16_t>(kFloor));
  std::uint16_t items[64];
  for (std::uint32_t first = 0; first < 1u << 16; first += 64) {
    for (std::uint32_t i = 0; i < 64; ++i) items[i] = static_cast<std::uint16_t>(first + i);
    const auto low = hn::LoadU(d16, items), high = hn::LoadU(d16, items + 32);
    const Bytes codes = Stored(D8(), EncodeByTable<F>(low, high, floor, floor));
    for (std::uint32_t i = 0; i < 64; ++i) {
      const float value = Decode<BFloat16>(items[i]);
      if (!(std::abs(value) <= kMaxValue<F>)) continue;
      ASSERT_EQ(codes[i], Encode<F>(value)) << F::kName << " " << value;
    }
  }
}
#endif

void TestFillRandom() {
  for (const RandomState& state :
       {RandomState{}, RandomState{0x123456789ABCDEF0, ~std::uint64_t{6}}, RandomState{7, 1}}) {
    for (const std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 32) - 3,
                                      kColumnwiseRuns + 5, ~std::uint64_t{0} - 40}) {
      for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{1} << 31}) {
        for (const std::size_t count : {1u, 2u, 7u, 16u, 33u}) {
          constexpr std::size_t kLanes = hn::MaxLanes(D64());  // runs of a vector
          const std::size_t end = (count + kLanes - 1) / kLanes * kLanes * kRandomRun;
          Bytes out(end + 4 * kLanes * kRandomRun, std::uint8_t{0xA5});
          FillRandom(state, first, step, count, out.data());
          for (std::size_t i = end; i < out.size(); ++i)
            ASSERT_EQ(out[i], 0xA5) << "byte " << i - end << " past " << count << " runs";
          for (std::size_t i = 0; i < count; ++i) {
            const auto expected = RandomBytes(state, first + i * step);
            ASSERT_EQ(std::memcmp(out.data() + i * kRandomRun, expected.data(), kRandomRun), 0)
                << "seed " << state.seed << " run " << first << " + " << i << " * " << step;
          }
        }
      }
    }
  }
}

/// Encodes every bfloat16 pattern by StochasticCoder, under a few scales and random bytes.
void TestStochasticCoder() {
  const hn::Repartition<std::uint16_t, D8> d16;
  const std::size_t lanes = hn::Lanes(d16);
  for (const float scale : {1.0f, 0.37f, 1e30f, 1e-30f}) {
    const auto scales = hn::Set(DF(), scale);
    for (std::uint32_t first = 0; first < 1u << 16; first += static_cast<std::uint32_t>(lanes)) {
      std::vector<std::uint16_t> items(lanes), codes(lanes);
      for (std::size_t i = 0; i < lanes; ++i) items[i] = static_cast<std::uint16_t>(first + i);
      const Bytes random = RandomVector(lanes);
      const StochasticCoder<Inputs::kAll> coder{random.data()};
      hn::StoreU(coder.Codes16<BFloat16>(hn::LoadU(d16, items.data()), scales, scales, 0), d16,
                 codes.data());
      for (std::size_t i = 0; i < lanes; ++i) {
        const float product = Decode<BFloat16>(items[i]) * scale;
        ASSERT_EQ(codes[i], EncodeStochastic(product, random[i]) << kCodeShift<E2M1>)
            << "item " << items[i] << " scale " << scale << " byte " << int{random[i]};
      }
    }
  }
}

/// Rounds the numbers of F, numbers beside them and numbers between them.
template <FloatFormat F>
void TestRoundToGrid() {
  for (std::uint32_t code = 0; code < F::kMaxCode; ++code) {
    const float low = Decode<F>(code), high = Decode<F>(code + 1), middle = (low + high) / 2;
    for (const float number :
         {low, std::nextafter(middle, low), middle, std::nextafter(middle, high), high}) {
      const auto rounded = RoundToGrid<F>(hn::Set(DF(), number));
      ASSERT_EQ(hn::GetLane(rounded), Decode<F>(Encode<F>(number))) << F::kName << " " << number;
    }
  }
}

/// Checks that item i of block j is staged in lane j of row i, and the last block's items in the
/// lanes past it, up to a whole vector.
template <class T>
void TestItemsOfBlocks() {
  const Bytes items = RandomVector(64 * kNvfp4Block * kItemSize<T>);
  const auto* row = reinterpret_cast<const std::byte*>(items.data());
  for (const std::size_t blocks : {1u, 2u, 5u, 63u, 64u}) {
    const auto staged = std::make_unique<StagedItems>();
    StageRow<T>(row, blocks, *staged);
    for (std::size_t j = 0; j < RoundUp(blocks, hn::Lanes(DF())); ++j) {
      for (std::size_t i = 0; i < kNvfp4Block; ++i) {
        const std::size_t block = std::min<std::size_t>(j, blocks - 1);
        const float item = std::abs(LoadItem<T>(row, block * kNvfp4Block + i));
        const float got = staged->of[i][j];
        ASSERT_TRUE(got == item || (std::isnan(item) && std::isnan(got)))
            << "block " << j << " item " << i;
      }
    }
  }
}

/// Widens every magnitude of a 16-bit type. NaN must stay NaN.
template <class T>
void TestWidening() {
  const hn::RebindToUnsigned<DF> d32;
  for (std::uint32_t bits = 0; bits <= 0x7FFF; ++bits) {
    const float value = Decode<T>(bits);
    const auto widened = WidenMagnitudes<T, Inputs::kAll>(hn::Set(d32, bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(hn::GetLane(widened))) << T::kName << " " << bits;
      continue;
    }
    ASSERT_EQ(MagnitudeValue<T>(bits), value) << T::kName << " " << bits;
    ASSERT_EQ(hn::GetLane(widened), value) << T::kName << " " << bits;
    const auto pairs = hn::Set(d32, bits | 0x00010000u);
    ASSERT_EQ(hn::GetLane(WidenEven<T, Inputs::kAll>(pairs)), value) << T::kName << bits;
    const auto swapped = hn::Set(d32, bits << 16 | 1u);
    ASSERT_EQ(hn::GetLane(WidenOdd<T, Inputs::kAll>(swapped)), value) << T::kName << bits;
  }
}

/// Loads every pattern of a 16-bit type.
template <class T>
void TestLoadFloats() {
  for (std::size_t first = 0; first < 1u << 16; first += hn::MaxLanes(DF())) {
    std::uint16_t items[hn::MaxLanes(DF())];
    for (std::size_t i = 0; i < std::size(items); ++i)
      items[i] = static_cast<std::uint16_t>(first + i);
    float values[std::size(items)];
    hn::StoreU(LoadFloats<T>(reinterpret_cast<const std::byte*>(items)), DF(), values);
    for (std::size_t i = 0; i < std::size(items); ++i) {
      const float expected = Decode<T>(items[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[i])) << T::kName << " " << items[i];
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected))
            << T::kName << " " << items[i];
      }
    }
  }
}

/// Finds the largest lane in every place, in vectors and in 128-bit blocks.
void TestMaxima() {
  const MagnitudeTag<BFloat16> di;
  const std::size_t lanes = hn::Lanes(di);
  for (std::size_t at = 0; at < lanes; ++at) {
    std::vector<std::int16_t> items(lanes, 3);
    items[at] = 0x7F81;
    const auto vector = hn::LoadU(di, items.data());
    ASSERT_EQ(LargestLane(di, vector), 0x7F81u) << "lane " << at;
    const auto ignored = Magnitudes<BFloat16, Inputs::kAll>(di, vector);
    ASSERT_EQ(LargestLane(di, ignored), 3u) << "NaN in lane " << at;
    const hn::FixedTag<std::int16_t, 8> d128;
    std::int16_t reduced[8];
    hn::StoreU(ReduceBlocks(di, vector), d128, reduced);
    for (std::size_t i = 0; i < 8; ++i)
      ASSERT_EQ(reduced[i], i == at % 8 ? 0x7F81 : 3) << "lane " << i << " of " << at;
  }
}

void TestSpreadScales() {
  float scales[64], out[64];
  for (int i = 0; i < 64; ++i) scales[i] = static_cast<float>(i + 1);
  for (std::size_t lane = 0; lane < 64; lane += hn::Lanes(DF())) {
    hn::StoreU(SpreadScales<8>(scales, lane), DF(), out);
    for (std::size_t i = 0; i < hn::Lanes(DF()); ++i)
      ASSERT_EQ(out[i], scales[(lane + i) / 8]) << "lane " << lane + i;
  }
}

void TestVectors() {
  TestTransposeSquares();
  TestTransposeQuads();
  TestPackCodes();
#if HWY_ARCH_X86
  TestNearestWhole();
#endif
#if HWY_TARGET <= HWY_AVX3
  TestStochasticWhole();
#endif
#if HWY_TARGET == HWY_AVX3_DL
  TestEncodeByTable<E4M3>();
  TestEncodeByTable<E5M2>();
#endif
  TestFillRandom();
  TestStochasticCoder();
  TestRoundToGrid<E4M3>();
  TestRoundToGrid<E5M2>();
  TestRoundToGrid<E2M1>();
  TestItemsOfBlocks<float>();
  TestItemsOfBlocks<BFloat16>();
  TestItemsOfBlocks<Float16>();
  TestWidening<BFloat16>();
  TestWidening<Float16>();
  TestLoadFloats<BFloat16>();
  TestLoadFloats<Float16>();
  TestMaxima();
  TestSpreadScales();
}

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

namespace narrowfloat {
namespace {

// Outside of HWY_BEFORE_NAMESPACE: this runs on machines that lack the instruction set too.
class VectorTest : public testing::Test {
  void TestBody() override { HWY_NAMESPACE::TestVectors(); }
};

[[maybe_unused]] const bool kIsRegistered = [] {
  if ((hwy::SupportedTargets() & HWY_TARGET) == 0) return false;
  testing::RegisterTest("VectorTest", hwy::TargetName(HWY_TARGET), nullptr, nullptr, __FILE__,
                        __LINE__, []() -> testing::Test* { return new VectorTest; });
  return true;
}();

}  // namespace
}  // namespace narrowfloat
