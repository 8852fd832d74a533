// SPDX-License-Identifier: Apache-2.0
// Memory that the caller hands in, and amaxes of what is never stored, on every backend.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

TEST(WorkspaceTest, DbiasIsTheSameWithAnyWorkspace) {
  std::mt19937_64 random(RunSeed());
  for (const Shape& shape : {Shape{1, 3}, Shape{129, 520}, Shape{3, 200, 300}}) {
    FloatTensor in(DType::kFloat32, shape);
    FillHostile(in, random, Range::kNumbers);
    const QuantSpec spec{.scheme = &FindScheme("mxfp8_e4m3"), .columnwise = true};
    const Shape columns{shape.back()};
    QuantizedBuffers expected(spec, shape);
    FloatTensor sums(DType::kFloat32, columns);
    QuantizeDbias(in.ConstView(), expected.view, sums.View(), {.threads = 1});
    const std::size_t enough = DbiasWorkspaceShape(FlattenShape(shape)).Size();
    for (const KernelTable* backend : AvailableKernels()) {
      for (const std::size_t size : {std::size_t{0}, enough - 1, enough, enough + 5}) {
        QuantizedBuffers got(spec, shape);
        FloatTensor dbias(DType::kFloat32, columns);
        std::vector<float> workspace(size, 1e30f);
        QuantizeDbias(in.ConstView(), got.view, dbias.View(), workspace,
                      {.threads = 3, .kernels = backend});
        EXPECT_EQ(Difference(expected, got), "") << backend->name << ", seed " << RunSeed();
        EXPECT_EQ(Difference(sums, dbias), "")
            << backend->name << ", " << size << " sums, seed " << RunSeed();
      }
    }
  }
}

TEST(WorkspaceTest, TheTransformsAmaxIsWhatColumnsAreQuantizedUnder) {
  std::mt19937_64 random(RunSeed());
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    FloatTensor in(dtype, {4, 48, 200});
    FillHostile(in, random, Range::kNumbers);
    QuantSpec spec{.scheme = &FindScheme("nvfp4"), .rowwise = false, .columnwise = true};
    spec.rht = true;
    spec.rht_sign_mask = 0x1234;
    for (const KernelTable* backend : AvailableKernels()) {
      QuantizedBuffers q(spec, in.shape());
      Quantize(in.ConstView(), q.view, {.threads = 2, .kernels = backend});
      const float amax = HadamardAmax(in.ConstView(), 0x1234, {.threads = 3, .kernels = backend});
      EXPECT_EQ(std::memcmp(&amax, q.Data(Role::kAmaxColumnwise), sizeof amax), 0)
          << backend->name << ", seed " << RunSeed();
    }
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
