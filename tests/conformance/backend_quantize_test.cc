// SPDX-License-Identifier: Apache-2.0
// Compares quantizing on every backend, for each scheme, direction and type, with the reference on
// difficult inputs: ragged shapes, strides, alignment, special values, odd scales.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/reference_quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

const Shape kShapes[] = {{},       {1},         {100},     {1, 1},     {1, 31},        {1, 32},
                         {1, 33},  {31, 1},     {32, 1},   {33, 1},    {1, 257},       {129, 1},
                         {5, 7},   {32, 32},    {64, 64},  {65, 48},   {130, 131},     {40, 300},
                         {0, 64},  {64, 0},     {3, 0, 5}, {3, 5, 67}, {2, 3, 33, 34}, {33, 1056},
                         {48, 80}, {2, 24, 34}, {272, 144}};

struct Slot {
  const SchemeInfo* scheme;
  DType dtype;
};

std::vector<Slot> Slots() {
  std::vector<Slot> slots;
  for (const SchemeInfo& scheme : kSchemes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      slots.push_back({&scheme, dtype});
  }
  return slots;
}

std::vector<Slot> SlotsWith(Option option) {
  std::vector<Slot> slots = Slots();
  std::erase_if(slots, [&](const Slot& slot) { return !slot.scheme->options.Has(option); });
  return slots;
}

std::string NameOf(const testing::TestParamInfo<Slot>& info) {
  return fmt::format("{}_{}", info.param.scheme->name, DTypeName(info.param.dtype));
}

/// Returns specs with NVFP4's options, one or two at a time.
std::vector<QuantSpec> OptionSpecsOf(const SchemeInfo& scheme) {
  std::vector<QuantSpec> specs;
  const QuantSpec both{.scheme = &scheme, .columnwise = true};
  const auto add = [&](auto&& set) {
    QuantSpec spec = both;
    set(spec);
    specs.push_back(spec);
  };
  if (scheme.options.Has(Option::kHadamard)) {
    add([](QuantSpec& s) { s.rht = true; });
    add([](QuantSpec& s) { s.rht = true, s.rht_sign_mask = 0x8001, s.rowwise = false; });
    add([](QuantSpec& s) { s.rht = s.stochastic_rounding = true, s.amax = 3.0f, s.seed = 5; });
  }
  if (scheme.options.Has(Option::kStochasticRounding)) {
    add([](QuantSpec& s) { s.stochastic_rounding = true; });
    add([](QuantSpec& s) {
      s.stochastic_rounding = true, s.seed = 0x123456789ABCDEF0, s.offset = ~std::uint64_t{6};
    });
  }
  if (scheme.options.Has(Option::kRowScaled)) {
    add([](QuantSpec& s) { s.row_scaled = true; });
    add([](QuantSpec& s) {
      s.row_scaled = true, s.four_over_six = FourOverSix::kMeanSquaredError;
    });
  }
  if (scheme.options.Has(Option::kFourOverSix)) {
    for (const auto error : {FourOverSix::kMeanAbsoluteError, FourOverSix::kMeanSquaredError}) {
      for (const bool fast : {false, true}) {
        add([&](QuantSpec& s) {
          s.four_over_six = error, s.four_over_six_fast_error = fast;
          s.e4m3_max = fast ? 448.0f : 256.0f;
        });
        add([&](QuantSpec& s) {  // block scales of all codes, and above the largest code
          s.four_over_six = error, s.four_over_six_fast_error = fast;
          s.amax = 0.5f, s.amax_columnwise = 1e30f;
        });
        // Amaxes for which decoded values are not normal in fp32: kernels divide each value.
        add([&](QuantSpec& s) {
          s.four_over_six = error, s.four_over_six_fast_error = fast;
          s.amax = 0x1p-125f, s.amax_columnwise = 0x1p127f;
        });
      }
    }
  }
  if (scheme.options.Has(Option::kAmaxColumnwise)) {
    add([](QuantSpec& s) { s.amax = 0.5f, s.amax_columnwise = 1e30f; });
    add([](QuantSpec& s) { s.amax_columnwise = 2.0f; });
    add([](QuantSpec& s) { s.amax = -1.0f, s.amax_columnwise = -1e-38f; });
  }
  return specs;
}

/// Quantizes `in` in each placement on each backend, and compares the buffers with the reference.
void ExpectReference(const FloatTensor& in, const QuantSpec& spec, const std::string& context,
                     std::span<const Placement> placements = kPlacements) {
  QuantizedBuffers expected(spec, in.shape());
  ReferenceQuantize(in, expected);
  for (const Placement placement : placements) {
    FloatTensor placed(in.dtype(), in.shape(), placement);
    placed.Assign(in);
    for (const KernelTable* backend : AvailableKernels()) {
      for (const ExecutionVariant& variant : kExecutionVariants) {
        QuantizedBuffers got(spec, in.shape(), MisalignmentOf(placement));
        Quantize(placed.ConstView(), got.view,
                 {.threads = variant.threads, .kernels = backend, .stores = variant.stores});
        ASSERT_EQ(Difference(expected, got), "")
            << fmt::format("{} {} {}, {}, on {} with {} threads; {}", PrintQuantSpec(spec),
                           DTypeName(in.dtype()), ShapeText(in.shape()), PlacementName(placement),
                           backend->name, variant.threads, context);
      }
    }
  }
}

class BackendQuantizeTest : public testing::TestWithParam<Slot> {};

TEST_P(BackendQuantizeTest, ShapesAndPlacementsDoNotMatter) {
  std::mt19937_64 random(RunSeed());
  for (const Shape& shape : kShapes) {
    for (const Range range : kRanges) {
      FloatTensor in(GetParam().dtype, shape);
      FillWithSpecials(in, random, range);
      for (const QuantSpec& spec : DirectionsOf({.scheme = GetParam().scheme})) {
        if (!Fits(spec, shape)) continue;
        ExpectReference(in, spec, fmt::format("NF_TEST_SEED={}", RunSeed()));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Tensors of several tiles along rows or columns. Their rows fill whole cache lines, so that tiles
// and strips end where a cache line begins.
TEST_P(BackendQuantizeTest, TensorsThatBeginInsideALine) {
  constexpr Placement kPlaced[] = {Placement::kContiguous, Placement::kInsideLine,
                                   Placement::kUnaligned};
  std::vector<QuantSpec> specs = DirectionsOf({.scheme = GetParam().scheme});
  for (const QuantSpec& spec : OptionSpecsOf(*GetParam().scheme)) {
    if (spec.rht || spec.stochastic_rounding) specs.push_back(spec);
  }
  std::mt19937_64 random(RunSeed());
  for (const Shape& shape : {Shape{2304, 64}, Shape{32, 4288}}) {
    FloatTensor in(GetParam().dtype, shape);
    FillWithSpecials(in, random, Range::kNear);
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (std::fabs(in.Value(i)) < 0x1p-10) in.SetBits(i, 0);
    }
    for (const QuantSpec& spec : specs) {
      ExpectReference(in, spec, fmt::format("NF_TEST_SEED={}", RunSeed()), kPlaced);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(BackendQuantizeTest, OptionsMatchTheReference) {
  std::mt19937_64 random(RunSeed());
  for (const QuantSpec& spec : OptionSpecsOf(*GetParam().scheme)) {
    for (const Shape& shape : kShapes) {
      if (!Fits(spec, shape)) continue;
      for (const Range range : kRanges) {
        // The reference's transform is inexact if the exponents of a group are far apart.
        if (spec.rht && range != Range::kNear) continue;
        FloatTensor in(GetParam().dtype, shape);
        FillWithSpecials(in, random, range);
        for (std::size_t i = 0; spec.rht && i < in.size(); ++i) {
          if (std::fabs(in.Value(i)) < 0x1p-10) in.SetBits(i, 0);
        }
        ExpectReference(in, spec, fmt::format("NF_TEST_SEED={}", RunSeed()));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(BackendQuantizeTest, BlocksOfOneKind) {
  for (const std::uint32_t bits : SpecialPatterns(GetParam().dtype)) {
    FloatTensor in(GetParam().dtype, {36, 70});
    for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, bits);
    for (const QuantSpec& spec : DirectionsOf({.scheme = GetParam().scheme})) {
      ExpectReference(in, spec, fmt::format("all items {:x}", bits));
      if (HasFatalFailure()) return;
    }
  }
}

class BackendScaleTest : public testing::TestWithParam<Slot> {};

TEST_P(BackendScaleTest, OddScalesFollowTheRules) {
  const SchemeInfo& scheme = *GetParam().scheme;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float odd[] = {0.0f, -0.0f,    1.0f,      -3.0f,      0x1.8p-140f,   0x1p-126f,
                       0.3f, 0x1p100f, kInfinity, -kInfinity, std::nanf(""), -std::nanf("")};
  std::mt19937_64 random(7);
  FloatTensor in(GetParam().dtype, {33, 70}), near(GetParam().dtype, {70, 140});
  FillWithSpecials(in, random);
  FillWithSpecials(near, random, Range::kNear);
  std::vector<QuantSpec> specs;
  for (const float value : odd) {
    specs.push_back({.scheme = &scheme, .columnwise = true, .scale = value});
    // The reference has no rule for a negative amax.
    if (!(value < 0.0f)) specs.push_back({.scheme = &scheme, .columnwise = true, .amax = value});
  }
  for (const float epsilon : {0.0f, 1e-12f, 3.0f, 1e30f})
    specs.push_back({.scheme = &scheme, .amax_epsilon = epsilon, .force_pow_2_scales = true});
  for (const QuantSpec& spec : specs) {
    ExpectReference(in, spec, "odd scales");
    ExpectReference(near, spec, "odd scales, near numbers");
    if (HasFatalFailure()) return;
  }
}

TEST_P(BackendQuantizeTest, NoopWritesNothing) {
  const QuantSpec spec{.scheme = GetParam().scheme, .columnwise = true};
  const FloatTensor in(GetParam().dtype, {40, 70});
  const QuantizedBuffers untouched(spec, in.shape());
  const float noop = 1.0f, not_noop = 2.0f;
  QuantizedBuffers skipped(spec, in.shape()), done(spec, in.shape());
  Quantize(in.ConstView(), skipped.view, {.noop = &noop});
  EXPECT_EQ(Difference(untouched, skipped), "");
  Quantize(in.ConstView(), done.view, {.noop = &not_noop});
  EXPECT_NE(Difference(untouched, done), "");
}

class BackendFourOverSixTest : public testing::TestWithParam<Slot> {};

// Half of the 16x16 squares have random items. The others have one nonzero line: the amax a, then
// pairs of a / 3 and a / 8, in which one item is replaced by the next larger float. The scale that
// maps a to 6 gives a / 3 no error and a / 8 an error of a / 24. The scale that maps a to 4 gives
// a / 8 no error and a / 3 an error of a / 24. The replaced items therefore decide which scale is
// better. Kernels that estimate errors must compute these errors exactly.
TEST_P(BackendFourOverSixTest, ErrorsThatDifferByTheLastBitOfAnItem) {
  const DType dtype = GetParam().dtype;
  const std::uint32_t binade = dtype == DType::kFloat32    ? 1u << 23
                               : dtype == DType::kBFloat16 ? 1u << 7
                                                           : 1u << 10;
  const std::uint32_t one = binade * (dtype == DType::kFloat16 ? 15 : 127);
  constexpr std::size_t kSide = 16, kRows = 4 * kSide, kCols = 24 * kSide;
  std::mt19937_64 random(RunSeed());
  const auto draw = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  FloatTensor in(dtype, {kRows, kCols});
  for (std::size_t square = 0; square < kRows / kSide * (kCols / kSide); ++square) {
    const std::size_t first =
        square / (kCols / kSide) * kSide * kCols + square % (kCols / kSide) * kSide;
    const auto set = [&](std::size_t r, std::size_t c, std::uint32_t bits) {
      in.SetBits(first + r * kCols + c, bits | draw(2) << (ItemSize(dtype) * 8 - 1));
    };
    for (std::size_t i = 0; i < kSide * kSide; ++i)
      set(i / kSide, i % kSide, square % 2 == 0 ? one - draw(4 * binade) : 0);
    if (square % 2 == 0) continue;
    const std::uint32_t power = one - draw(4) * binade, line = draw(kSide), pairs = 1 + draw(3);
    const bool is_row = draw(2) == 0, second_is_better = draw(2) == 0;
    const auto set_in_line = [&](std::size_t pos, std::uint32_t bits) {
      is_row ? set(line, pos, bits) : set(pos, line, bits);
    };
    set_in_line(0, power + binade / 2);
    for (std::uint32_t i = 0; i < pairs; ++i) {
      set_in_line(1 + 2 * i, power - binade + (second_is_better ? 0 : 1));
      set_in_line(2 + 2 * i, power - 3 * binade + binade / 2 + (second_is_better ? 1 : 0));
    }
  }
  for (const auto measure : {FourOverSix::kMeanAbsoluteError, FourOverSix::kMeanSquaredError}) {
    for (const bool fast : {false, true}) {
      // With this amax the block scales for a / 6 and a / 4 are exact in E4M3.
      ExpectReference(in,
                      {.scheme = GetParam().scheme,
                       .columnwise = true,
                       .amax = 2.625f,
                       .amax_columnwise = 2.625f,
                       .four_over_six = measure,
                       .four_over_six_fast_error = fast},
                      fmt::format("NF_TEST_SEED={}", RunSeed()));
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Slots, BackendFourOverSixTest,
                         testing::ValuesIn(SlotsWith(Option::kFourOverSix)), NameOf);
INSTANTIATE_TEST_SUITE_P(Slots, BackendQuantizeTest, testing::ValuesIn(Slots()), NameOf);
INSTANTIATE_TEST_SUITE_P(Slots, BackendScaleTest, testing::ValuesIn(SlotsWith(Option::kScale)),
                         NameOf);

TEST(BackendAmaxTest, IsTheLargestMagnitudeAndSkipsNan) {
  std::mt19937_64 random(11);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Shape& shape : kShapes) {
      for (const Placement placement : kPlacements) {
        FloatTensor in(dtype, shape, placement);
        FillWithSpecials(in, random);
        // An infinity is always the amax: only contiguous tensors keep their infinities.
        double expected = 0;
        for (std::size_t i = 0; i < in.size(); ++i) {
          if (placement != Placement::kContiguous && std::isinf(in.Value(i))) in.SetBits(i, 0);
          const double magnitude = std::fabs(in.Value(i));
          if (magnitude > expected) expected = magnitude;
        }
        for (const KernelTable* backend : AvailableKernels()) {
          EXPECT_EQ(std::bit_cast<std::uint32_t>(Amax(in.ConstView(), {.kernels = backend})),
                    std::bit_cast<std::uint32_t>(static_cast<float>(expected)))
              << fmt::format("{} {} {} on {}", DTypeName(dtype), ShapeText(shape),
                             PlacementName(placement), backend->name);
        }
      }
    }
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
