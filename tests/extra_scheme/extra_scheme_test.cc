// SPDX-License-Identifier: Apache-2.0
// A scheme that this build knows from its header alone: what follows for it from its layout.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"
#include "tests/extra_scheme/mxfp4_of_64.h"

namespace narrowfloat::conformance {
namespace {

TEST(ExtraSchemeTest, PlanAndTextKnowTheScheme) {
  const QuantSpec spec = ParseQuantSpec("mxfp4_of_64_e2m1:columnwise=1,swizzled=1");
  EXPECT_EQ(PrintQuantSpec(spec), "mxfp4_of_64_e2m1:columnwise=1,swizzled=1");
  const auto bytes = DType::kUInt8;
  EXPECT_EQ(PlanQuantize(spec, {130, 96}),
            (std::vector<BufferPlan>{
                {Role::kRowwiseData, bytes, {130, 48}, Role::kRowwiseData},
                {Role::kRowwiseScaleInv, bytes, {256, 4}, Role::kRowwiseScaleInv},
                {Role::kColumnwiseData, bytes, {96, 65}, Role::kColumnwiseData},
                {Role::kColumnwiseScaleInv, bytes, {128, 4}, Role::kColumnwiseScaleInv}}));
}

/// Columns are quantized as the rows of the transpose, compact and swizzled.
TEST(ExtraSchemeTest, ColumnwiseIsRowwiseOfTheTranspose) {
  std::mt19937_64 random(RunSeed());
  FloatTensor in(DType::kBFloat16, {70, 44}), turned(DType::kBFloat16, {44, 70});
  FillHostile(in, random);
  for (std::size_t i = 0; i < in.size(); ++i) turned.SetBits(i % 44 * 70 + i / 44, in.Bits(i));
  for (const bool swizzled : {false, true}) {
    QuantSpec spec{.scheme = &FindScheme(Mxfp4Of64::kName), .swizzled = swizzled};
    QuantizedBuffers rows(spec, turned.shape());
    Quantize(turned.ConstView(), rows.view);
    spec.columnwise = true;
    QuantizedBuffers both(spec, in.shape());
    Quantize(in.ConstView(), both.view);
    const auto same = [&](Role columnwise, Role rowwise) {
      return both.Bytes(columnwise) == rows.Bytes(rowwise) &&
             std::equal(both.Data(columnwise), both.Data(columnwise) + both.Bytes(columnwise),
                        rows.Data(rowwise));
    };
    EXPECT_TRUE(same(Role::kColumnwiseData, Role::kRowwiseData)) << "NF_TEST_SEED=" << RunSeed();
    EXPECT_TRUE(same(Role::kColumnwiseScaleInv, Role::kRowwiseScaleInv))
        << "NF_TEST_SEED=" << RunSeed();
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
