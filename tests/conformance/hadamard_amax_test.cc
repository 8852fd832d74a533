// SPDX-License-Identifier: Apache-2.0
// Tests amaxes of transforms that are not stored, on every backend.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

constexpr std::uint32_t kSignMask = 0x1234;

/// Compares the amax of HadamardAmax and the columnwise amax of Quantize with the largest magnitude
/// of the reference's transform of the whole tensor.
void CheckAmax(const FloatTensor& in) {
  FloatTensor transform(in.dtype(), in.shape());
  HadamardTransform(in.ConstView(), transform.View(), kSignMask, {.kernels = &ScalarKernels()});
  float expected = 0.0f;
  for (std::size_t i = 0; i < transform.size(); ++i)
    expected = std::max(expected, static_cast<float>(std::fabs(transform.Value(i))));
  QuantSpec spec{.scheme = &FindScheme("nvfp4"), .rowwise = false, .columnwise = true};
  spec.rht = true;
  spec.rht_sign_mask = kSignMask;
  for (const KernelTable* backend : AvailableKernels()) {
    QuantizedBuffers q(spec, in.shape());
    Quantize(in.ConstView(), q.view, {.threads = 2, .kernels = backend});
    float stored;
    std::memcpy(&stored, q.Data(Role::kAmaxColumnwise), sizeof stored);
    EXPECT_EQ(stored, expected) << backend->name;
    EXPECT_EQ(HadamardAmax(in.ConstView(), kSignMask, {.threads = 3, .kernels = backend}), expected)
        << backend->name;
  }
}

TEST(HadamardAmaxTest, IsTheLargestMagnitudeOfTheTransform) {
  std::mt19937_64 random(RunSeed());
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    FloatTensor in(dtype, {4, 48, 200});
    FillWithSpecials(in, random, Range::kNumbers);
    SCOPED_TRACE(fmt::format("NF_TEST_SEED={}", RunSeed()));
    CheckAmax(in);
  }
}

// The only nonzero item is in the first, an inner or the last group of rows. Its column is the
// first, the last, or next to the end of the first 512 columns, which are transformed at a time.
TEST(HadamardAmaxTest, FindsTheLargestMagnitudeAnywhere) {
  constexpr std::size_t kRows = 48, kCols = 1100;
  for (const std::size_t row : {std::size_t{0}, std::size_t{17}, kRows - 1}) {
    for (const std::size_t col : {std::size_t{0}, std::size_t{511}, std::size_t{512}, kCols - 1}) {
      FloatTensor in(DType::kBFloat16, {kRows, kCols});
      in.SetBits(row * kCols + col, 0x4480);  // 1024
      SCOPED_TRACE(fmt::format("item ({}, {})", row, col));
      CheckAmax(in);
    }
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
