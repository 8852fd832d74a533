// SPDX-License-Identifier: Apache-2.0
// Tests schemes that only a header adds to the library.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "narrowfloat/kernels/cpu/scheme_drivers.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"
#include "tests/extra_scheme/extra_schemes.h"

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

/// Compares columnwise buffers with the rowwise buffers of the transpose, compact and swizzled.
TEST(ExtraSchemeTest, ColumnwiseIsRowwiseOfTheTranspose) {
  std::mt19937_64 random(RunSeed());
  FloatTensor in(DType::kBFloat16, {70, 44}), turned(DType::kBFloat16, {44, 70});
  FillWithSpecials(in, random);
  for (std::size_t i = 0; i < in.size(); ++i) turned.SetBits(i % 44 * 70 + i / 44, in.Bits(i));
  for (const bool swizzled : {false, true}) {
    QuantSpec spec{.scheme = &kSchemes[IndexIn<Mxfp4Of64>(AllSchemes{})], .swizzled = swizzled};
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

/// Codes, scales and decoded values of one spec and type, computed by one backend.
struct Result {
  QuantizedBuffers codes;
  FloatTensor rowwise, columnwise;

  Result(const FloatTensor& in, const QuantSpec& spec, const KernelTable& backend)
      : codes(spec, in.shape()),
        rowwise(in.dtype(), in.shape()),
        columnwise(in.dtype(), in.shape()) {
    const Execution execution{.kernels = &backend};
    Quantize(in.ConstView(), codes.view, execution);
    QuantizedView view = codes.view;
    Dequantize(view, rowwise.View(), execution);
    view[Role::kRowwiseData] = {};
    Dequantize(view, columnwise.View(), execution);
  }
};

/// Compares every backend with the reference in both directions, with and without a driver.
TEST(ExtraSchemeTest, EveryBackendGivesTheReferencesBytes) {
  std::mt19937_64 random(RunSeed());
  for (const std::size_t index :
       {IndexIn<Mxfp4Of64>(AllSchemes{}), IndexIn<Fp8Block64x64>(AllSchemes{})}) {
    const SchemeInfo& scheme = kSchemes[index];
    QuantSpec spec{.scheme = &scheme, .columnwise = true};
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const Shape& shape : {Shape{2, 2}, Shape{64, 128}, Shape{130, 206}, Shape{300, 70}}) {
        for (const Range range : kRanges) {
          FloatTensor in(dtype, shape);
          FillWithSpecials(in, random, range);
          const Result expected(in, spec, ScalarKernels());
          for (const KernelTable* backend : AvailableKernels()) {
            const Result got(in, spec, *backend);
            const std::string where = std::string(scheme.name) + " " + std::string(backend->name) +
                                      " " + ShapeText(shape) +
                                      ", NF_TEST_SEED=" + std::to_string(RunSeed());
            EXPECT_EQ(Difference(expected.codes, got.codes), "") << where;
            EXPECT_EQ(Difference(expected.rowwise, got.rowwise), "") << where;
            EXPECT_EQ(Difference(expected.columnwise, got.columnwise), "") << where;
          }
        }
      }
    }
  }
}

/// Checks that the build has vector kernels, and that these schemes use them.
TEST(ExtraSchemeTest, TheBestBackendTakesBothSchemes) {
  ASSERT_NE(AvailableKernels().front(), &ScalarKernels());
  for (const std::size_t i :
       {IndexIn<Mxfp4Of64>(AllSchemes{}), IndexIn<Fp8Block64x64>(AllSchemes{})}) {
    EXPECT_NE(cpu::kSchemeDrivers[i].quantize[0], cpu::Driver::kReference) << kSchemes[i].name;
    EXPECT_TRUE(cpu::kSchemeDrivers[i].decodes[0]) << kSchemes[i].name;
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
