// SPDX-License-Identifier: Apache-2.0
// Amaxes of what is never stored, on every backend.
#include <gtest/gtest.h>

#include <bit>
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

TEST(HadamardAmaxTest, IsWhatColumnsAreQuantizedUnder) {
  std::mt19937_64 random(RunSeed());
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    FloatTensor in(dtype, {4, 48, 200});
    FillWithSpecials(in, random, Range::kNumbers);
    QuantSpec spec{.scheme = &FindScheme("nvfp4"), .rowwise = false, .columnwise = true};
    spec.rht = true;
    spec.rht_sign_mask = 0x1234;
    for (const KernelTable* backend : AvailableKernels()) {
      QuantizedBuffers q(spec, in.shape());
      Quantize(in.ConstView(), q.view, {.threads = 2, .kernels = backend});
      const float amax = HadamardAmax(in.ConstView(), 0x1234, {.threads = 3, .kernels = backend});
      float stored;
      std::memcpy(&stored, q.Data(Role::kAmaxColumnwise), sizeof stored);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(amax), std::bit_cast<std::uint32_t>(stored))
          << backend->name << ", seed " << RunSeed();
    }
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
