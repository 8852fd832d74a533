// SPDX-License-Identifier: Apache-2.0
// MXFP4 against TransformerEngine's records, rowwise alone: its reference has no columns for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/golden_case.h"

namespace narrowfloat::conformance {
namespace {

std::uint32_t CodeAt(const std::byte* codes, std::size_t item) {
  return std::to_integer<std::uint32_t>(codes[item / 2]) >> item % 2 * 4 & 0xFu;
}

/// Returns the code with the input's sign. The reference drops the sign of values that round to -0.
std::uint32_t WithSignOf(const FloatTensor& in, std::size_t item, std::uint32_t code) {
  const bool negative = (in.Bits(item) >> (ItemSize(in.dtype()) * 8 - 1)) != 0;
  return code == 0 && negative ? 8u : code;
}

class GoldenMxfp4Test : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenMxfp4Test, GivesTheRecordedBytes) {
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

TEST_P(GoldenMxfp4Test, DecodesByTheRecordedScales) {
  const GoldenCase golden = LoadGolden(GetParam());
  const FloatTensor in = GoldenInput(golden);
  const GoldenTensor& scales = golden.At("scale_inv.fp32");
  QuantizedBuffers codes(GoldenSpec(golden), in.shape());
  Quantize(in.ConstView(), codes.view);
  FloatTensor values(DType::kFloat32, in.shape());
  Dequantize(codes.view, values.View());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float scale = std::bit_cast<float>(scales.Bits(i / kMxBlock));
    const float value = Decode<E2M1>(CodeAt(codes.Data(Role::kRowwiseData), i));
    ASSERT_EQ(values.Bits(i), std::bit_cast<std::uint32_t>(value * scale)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, GoldenMxfp4Test, testing::ValuesIn(GoldenFiles("mxfp4")),
                         [](const auto& file) { return file.param.stem().string(); });

}  // namespace
}  // namespace narrowfloat::conformance
