// SPDX-License-Identifier: Apache-2.0
// A scheme that this build knows from its header alone, against TransformerEngine's records and
// what follows for it from its layout.
#include "tests/extra_scheme/mxfp4.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>

#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/golden_case.h"

namespace narrowfloat::conformance {
namespace {

std::uint32_t CodeAt(const std::byte* codes, std::size_t item) {
  return std::to_integer<std::uint32_t>(codes[item / 2]) >> item % 2 * 4 & 0xFu;
}

/// The reference forgets the sign of a zero that was -0 before it was rounded.
std::uint32_t WithSignOf(const FloatTensor& in, std::size_t item, std::uint32_t code) {
  const bool negative = (in.Bits(item) >> (ItemSize(in.dtype()) * 8 - 1)) != 0;
  return code == 0 && negative ? 8u : code;
}

class Mxfp4Test : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Mxfp4Test, GivesTheRecordedBytes) {
  const GoldenCase golden = LoadGolden(GetParam());
  const FloatTensor in = GoldenInput(golden);
  const GoldenTensor &codes = golden.At("data"), &scales = golden.At("scale_inv");
  QuantizedBuffers got(GoldenSpec(golden), in.shape());
  Quantize(in.ConstView(), got.view, {.threads = 3});
  EXPECT_TRUE(got.GuardsAreWhole());
  ASSERT_EQ(got.Bytes(Role::kRowwiseData), codes.bytes.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(CodeAt(got.Data(Role::kRowwiseData), i),
              WithSignOf(in, i, CodeAt(codes.bytes.data(), i)))
        << "code " << i;
  }
  const MatrixShape stored = FlattenShape(got.view[Role::kRowwiseScaleInv].shape);
  const MatrixShape valid = FlattenShape(scales.shape);
  for (std::size_t i = 0; i < stored.Size(); ++i) {
    const std::size_t row = i / stored.cols, col = i % stored.cols;
    const bool padding = row >= valid.rows || col >= valid.cols;
    ASSERT_EQ(std::to_integer<std::uint32_t>(got.Data(Role::kRowwiseScaleInv)[i]),
              padding ? 0u : scales.Bits(row * valid.cols + col))
        << "scale " << row << ", " << col;
  }
}

TEST_P(Mxfp4Test, DecodesByTheRecordedScales) {
  const GoldenCase golden = LoadGolden(GetParam());
  const FloatTensor in = GoldenInput(golden);
  const GoldenTensor& scales = golden.At("scale_inv.fp32");
  QuantizedBuffers codes(GoldenSpec(golden), in.shape());
  Quantize(in.ConstView(), codes.view);
  FloatTensor values(DType::kFloat32, in.shape());
  Dequantize(codes.view, values.View());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float scale = std::bit_cast<float>(scales.Bits(i / Mxfp4::kBlock.cols));
    const float value = Decode<E2M1>(CodeAt(codes.Data(Role::kRowwiseData), i));
    ASSERT_EQ(values.Bits(i), std::bit_cast<std::uint32_t>(value * scale)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, Mxfp4Test, testing::ValuesIn(GoldenFiles("mxfp4")),
                         [](const auto& file) { return file.param.stem().string(); });

TEST(Mxfp4LayoutTest, PlanAndTextKnowTheScheme) {
  const QuantSpec spec = ParseQuantSpec("mxfp4_e2m1:columnwise=1,swizzled=1");
  EXPECT_EQ(PrintQuantSpec(spec), "mxfp4_e2m1:columnwise=1,swizzled=1");
  const auto bytes = DType::kUInt8;
  EXPECT_EQ(PlanQuantize(spec, {130, 96}),
            (std::vector<BufferPlan>{
                {Role::kRowwiseData, bytes, {130, 48}, Role::kRowwiseData},
                {Role::kRowwiseScaleInv, bytes, {256, 4}, Role::kRowwiseScaleInv},
                {Role::kColumnwiseData, bytes, {96, 65}, Role::kColumnwiseData},
                {Role::kColumnwiseScaleInv, bytes, {128, 8}, Role::kColumnwiseScaleInv}}));
}

/// Columns are quantized as the rows of the transpose, compact and swizzled.
TEST(Mxfp4LayoutTest, ColumnwiseIsRowwiseOfTheTranspose) {
  std::mt19937_64 random(RunSeed());
  FloatTensor in(DType::kBFloat16, {70, 44}), turned(DType::kBFloat16, {44, 70});
  FillHostile(in, random);
  for (std::size_t i = 0; i < in.size(); ++i) turned.SetBits(i % 44 * 70 + i / 44, in.Bits(i));
  for (const bool swizzled : {false, true}) {
    QuantSpec spec{.scheme = &FindScheme(Mxfp4::kName), .swizzled = swizzled};
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
