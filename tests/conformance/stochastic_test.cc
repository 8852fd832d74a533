// SPDX-License-Identifier: Apache-2.0
// Tests stochastic rounding: the mean of rounded values is close to the input, and random bits
// depend on positions alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

constexpr std::size_t kBlock = 16;

// Under this amax the tensor's scale is 1, and so is the scale of a block whose largest item is 6:
// items are rounded unscaled. Source: docs/numerics.md, "NVFP4", with A = 6 * 448.
constexpr float kNeutralAmax = 2688.0f;

QuantSpec Spec(const SchemeInfo& scheme, std::uint64_t seed) {
  return {.scheme = &scheme, .amax = kNeutralAmax, .stochastic_rounding = true, .seed = seed};
}

std::vector<const SchemeInfo*> Schemes() {
  std::vector<const SchemeInfo*> schemes;
  for (const SchemeInfo& scheme : kSchemes) {
    if (scheme.options.Has(Option::kStochasticRounding)) schemes.push_back(&scheme);
  }
  return schemes;
}

/// Returns a tensor of items `value`. The first item of each block is 6.
FloatTensor Samples(const Shape& shape, float value) {
  FloatTensor in(DType::kFloat32, shape);
  for (std::size_t i = 0; i < in.size(); ++i)
    in.SetBits(i, std::bit_cast<std::uint32_t>(i % kBlock == 0 ? 6.0f : value));
  return in;
}

FloatTensor Rounded(const FloatTensor& in, const QuantSpec& spec, const Execution& how = {}) {
  QuantizedBuffers codes(spec, in.shape());
  Quantize(in.ConstView(), codes.view, how);
  FloatTensor values(DType::kFloat32, in.shape());
  Dequantize(codes.view, values.View());
  return values;
}

float StepAt(float magnitude) {
  return magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
}

/// Returns the deviation t that one of `trials` means of n = `samples` roundings, each within one
/// step, exceeds with a probability of at most 10^-9. Hoeffding's inequality:
/// P(|mean - E| >= t) <= 2 exp(-2 n t^2 / step^2).
double Deviation(double step, double samples, double trials = 1) {
  return step * std::sqrt(std::log(2e9 * trials) / (2 * samples));
}

/// Let f be the fraction of a value within its step. floor(256 f) of the 256 random bytes round up:
/// the expectation is less than step / 256 below the value. Values of E2M1 stay unchanged.
TEST(StochasticTest, TheMeanIsWithinTheBoundOfItsBias) {
  const Shape shape{128, 512};
  const double samples = 128.0 * 512 * (kBlock - 1) / kBlock;
  for (const SchemeInfo* scheme : Schemes()) {
    for (const float value : {0.1f, 0.3f, 0.499f, 0.75f, 1.0f, 1.9f, 2.25f, 3.001f, 3.5f, 4.0f,
                              4.1f, 5.0f, 5.99f, -0.2f, -2.7f, -5.5f}) {
      const FloatTensor values = Rounded(Samples(shape, value), Spec(*scheme, RunSeed()));
      double sum = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (i % kBlock != 0) sum += values.Value(i);
      }
      const double magnitude = std::abs(value), step = StepAt(std::abs(value));
      const double below = std::floor(magnitude / step) * step;
      const double fraction = (magnitude - below) / step;
      const double expected = std::copysign(below + step * std::floor(256 * fraction) / 256, value);
      const double mean = sum / samples;
      const double bound = fraction == 0 ? 0.0 : Deviation(step, samples);
      EXPECT_LE(std::abs(mean - expected), bound)
          << scheme->name << " of " << value << ", NF_TEST_SEED=" << RunSeed();
      EXPECT_LE(std::abs(mean - value), bound + step / 256)
          << scheme->name << " of " << value << ", NF_TEST_SEED=" << RunSeed();
    }
  }
}

/// Each item's mean over seeds approaches the item as the number of seeds grows.
TEST(StochasticTest, TheMeanOverSeedsConvergesToTheInput) {
  constexpr int kSeeds = 2000, kFewSeeds = kSeeds / 100;
  std::mt19937_64 random(RunSeed());
  std::uniform_real_distribution<float> uniform(-6.0f, 6.0f);
  for (const SchemeInfo* scheme : Schemes()) {
    FloatTensor in(DType::kFloat32, {16, 32});
    for (std::size_t i = 0; i < in.size(); ++i)
      in.SetBits(i, std::bit_cast<std::uint32_t>(i % kBlock == 0 ? 6.0f : uniform(random)));
    std::vector<double> few(in.size()), sums(in.size());
    for (int seed = 0; seed < kSeeds; ++seed) {
      const FloatTensor values =
          Rounded(in, Spec(*scheme, RunSeed() + static_cast<std::uint64_t>(seed)), {.threads = 1});
      for (std::size_t i = 0; i < in.size(); ++i) sums[i] += values.Value(i);
      if (seed + 1 == kFewSeeds) few = sums;
    }
    double error_of_few = 0, error_of_all = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double step = StepAt(std::abs(static_cast<float>(in.Value(i))));
      const double off = std::abs(sums[i] / kSeeds - in.Value(i));
      EXPECT_LE(off, Deviation(step, kSeeds, static_cast<double>(in.size())) + step / 256)
          << scheme->name << ", item " << i << ", NF_TEST_SEED=" << RunSeed();
      error_of_all += off;
      error_of_few += std::abs(few[i] / kFewSeeds - in.Value(i));
    }
    // Apart from the bias, a hundredth of the seeds has ten times the error. Tests for four times,
    // which is certain enough: the error is a sum over 480 items.
    EXPECT_GT(error_of_few, 4 * error_of_all) << scheme->name << ", NF_TEST_SEED=" << RunSeed();
  }
}

TEST(StochasticTest, BitsBelongToPlacesWhoeverTakesThem) {
  std::mt19937_64 random(RunSeed());
  FloatTensor in(DType::kBFloat16, {272, 144});
  FillWithSpecials(in, random);
  for (const SchemeInfo* scheme : Schemes()) {
    for (const bool rht : {false, true}) {
      if (rht && !scheme->options.Has(Option::kHadamard)) continue;
      const QuantSpec spec{.scheme = scheme,
                           .columnwise = true,
                           .rht = rht,
                           .stochastic_rounding = true,
                           .seed = RunSeed()};
      QuantizedBuffers expected(spec, in.shape());
      Quantize(in.ConstView(), expected.view, {.threads = 1, .kernels = &ScalarKernels()});
      for (const KernelTable* backend : AvailableKernels()) {
        for (const int threads : {1, 2, 7}) {
          for (const Placement placement : kPlacements) {
            FloatTensor placed(in.dtype(), in.shape(), placement);
            placed.Assign(in);
            QuantizedBuffers got(spec, in.shape());
            Quantize(placed.ConstView(), got.view, {.threads = threads, .kernels = backend});
            ASSERT_EQ(Difference(expected, got), "")
                << PrintQuantSpec(spec) << " on " << backend->name << " with " << threads
                << " threads, " << PlacementName(placement);
          }
        }
      }
    }
  }
}

/// Shows that equal items of a block may get different codes, unlike under rounding to nearest.
TEST(StochasticTest, EqualItemsMayBecomeDifferentCodes) {
  for (const SchemeInfo* scheme : Schemes()) {
    // 480 items in the middle of a step all round in one direction with a probability of 2^-479.
    const FloatTensor values = Rounded(Samples({16, 32}, 0.25f), Spec(*scheme, RunSeed()));
    std::size_t up = 0, down = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % kBlock != 0) ++(values.Value(i) == 0.0 ? down : up);
    }
    EXPECT_GT(up, 0u) << scheme->name;
    EXPECT_GT(down, 0u) << scheme->name;
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
