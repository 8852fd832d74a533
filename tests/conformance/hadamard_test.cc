// SPDX-License-Identifier: Apache-2.0
// Compares the Hadamard transform of every backend with the reference, which adds each output's
// terms exactly and rounds once. The inputs are difficult for faster algorithms: exponents far
// apart, cancellation, zeros of both signs, infinities and NaN, ragged columns.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/numerics/hadamard.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

struct Case {
  std::string name;
  // The largest difference of two items' exponents.
  int spread;
  bool special;
};

const Case kCases[] = {{"near", 4, false},  {"at_fp32s_edge", 13, false}, {"apart", 40, false},
                       {"far", 120, false}, {"everywhere", 250, false},   {"special", 20, true}};

/// Returns the bits of an item. About half of the numbers have at most two mantissa bits, so that
/// sums cancel and are halfway between two items.
std::uint32_t RandomItem(const Case& c, DType dtype, std::mt19937& random) {
  const auto draw = [&] { return static_cast<std::uint32_t>(random()); };
  const std::uint32_t pick = draw() % 64;
  const bool half = dtype == DType::kFloat16;
  const int mantissa = dtype == DType::kFloat32 ? 23 : half ? 10 : 7;
  const int top = half ? 30 : 254;
  const int width = dtype == DType::kFloat32 ? 32 : 16;
  const std::uint32_t sign = (draw() & 1u) << (width - 1);
  if (pick < 6) return sign;  // zero
  if (pick == 6 && c.special) return sign | static_cast<std::uint32_t>(top + 1) << mantissa;
  if (pick == 7 && c.special) return sign | (static_cast<std::uint32_t>(top + 1) << mantissa) | 1u;
  const auto largest = static_cast<std::uint32_t>(top - 6);  // sums stay finite
  const std::uint32_t field =
      largest - draw() % (std::min(static_cast<std::uint32_t>(c.spread), largest) + 1u);
  const std::uint32_t bits = draw() & ((1u << mantissa) - 1u);
  return sign | field << mantissa | (pick < 32 ? bits & (3u << (mantissa - 2)) : bits);
}

FloatTensor RandomTensor(const Case& c, DType dtype, const Shape& shape) {
  std::mt19937 random(static_cast<unsigned>(c.spread));
  FloatTensor tensor(dtype, shape);
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor.SetBits(i, RandomItem(c, dtype, random));
  return tensor;
}

class HadamardTest : public testing::TestWithParam<std::tuple<Case, DType>> {};

TEST_P(HadamardTest, MatchesTheReferenceOnEveryBackend) {
  const auto& [c, dtype] = GetParam();
  for (const Shape& shape : {Shape{16, 1}, Shape{16, 15}, Shape{32, 40}, Shape{48, 257}}) {
    const FloatTensor in = RandomTensor(c, dtype, shape);
    for (const std::uint32_t mask : {0u, kHadamardSignMask, 0xFFFFu}) {
      FloatTensor expected(dtype, shape);
      HadamardTransform(in.ConstView(), expected.View(), mask, {.kernels = &ScalarKernels()});
      for (const KernelTable* backend : AvailableKernels()) {
        FloatTensor got(dtype, shape);
        HadamardTransform(in.ConstView(), got.View(), mask, {.kernels = backend});
        for (std::size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(expected.Bits(i), got.Bits(i)) << fmt::format(
              "{} item {} of {}, mask {:04x}", backend->name, i, ShapeText(shape), mask);
        }
      }
    }
  }
}

/// Compares NVFP4's columnwise codes of the transform.
TEST_P(HadamardTest, QuantizesAsTheReferenceOnEveryBackend) {
  const auto& [c, dtype] = GetParam();
  QuantSpec spec{.scheme = &FindScheme("nvfp4"), .rowwise = false, .columnwise = true};
  spec.rht = true;
  for (const Shape& shape : {Shape{16, 1}, Shape{48, 63}, Shape{160, 200}}) {
    const FloatTensor in = RandomTensor(c, dtype, shape);
    for (const float amax : {3.0f, -3.0f}) {  // a negative amax is left to the reference
      spec.amax_columnwise = amax;
      QuantizedBuffers expected(spec, shape);
      Quantize(in.ConstView(), expected.view, {.kernels = &ScalarKernels()});
      for (const KernelTable* backend : AvailableKernels()) {
        QuantizedBuffers got(spec, shape);
        Quantize(in.ConstView(), got.view, {.threads = 2, .kernels = backend});
        ASSERT_EQ(Difference(expected, got), "") << backend->name << " " << ShapeText(shape);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranges, HadamardTest,
                         testing::Combine(testing::ValuesIn(kCases),
                                          testing::Values(DType::kFloat32, DType::kFloat16,
                                                          DType::kBFloat16)),
                         [](const testing::TestParamInfo<std::tuple<Case, DType>>& slot) {
                           return fmt::format("{}_{}", std::get<0>(slot.param).name,
                                              DTypeName(std::get<1>(slot.param)));
                         });

}  // namespace
}  // namespace narrowfloat::conformance
