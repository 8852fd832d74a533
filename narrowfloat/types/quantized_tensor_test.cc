// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/quantized_tensor.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/testing.h"
#include "narrowfloat/types/float8_block_tensor.h"
#include "narrowfloat/types/float8_tensor.h"
#include "narrowfloat/types/mxfp8_tensor.h"
#include "narrowfloat/types/types_testing.h"

namespace narrowfloat {
namespace {

QuantizedTensor MakeTensor(const char* spec, const Shape& shape) {
  QuantizedTensor tensor(ParseQuantSpec(spec), shape);
  Quantize(MakeInput(shape).ConstView(), tensor.View());
  return tensor;
}

TEST(QuantizedTensorTest, AnAliasSharesAndACloneDoesNot) {
  QuantizedTensor tensor = MakeTensor("fp8_e4m3:columnwise=1", {4, 6});
  const QuantizedTensor alias = tensor.Alias(), clone = tensor.Clone();
  ExpectSameBuffers(clone.ConstView(), tensor.ConstView());
  EXPECT_EQ(clone.ConstView()[Role::kRowwiseScaleInv].data,
            clone.ConstView()[Role::kColumnwiseScaleInv].data);
  tensor.View()[Role::kRowwiseData].data[0] ^= std::byte{1};
  ExpectSameBuffers(alias.ConstView(), tensor.ConstView());
  EXPECT_NE(clone.ConstView()[Role::kRowwiseData].data[0],
            tensor.ConstView()[Role::kRowwiseData].data[0]);
}

TEST(QuantizedTensorTest, AnotherNominalTypeIsAnAlias) {
  QuantizedTensor tensor = MakeTensor("mxfp8_e4m3", {4, 32});
  QuantizedTensor half = tensor.ToDType(DType::kBFloat16);
  EXPECT_EQ(half.NominalDType(), DType::kBFloat16);
  EXPECT_EQ(half.Dequantize().dtype(), DType::kBFloat16);
  EXPECT_EQ(half.View()[Role::kRowwiseData].data, tensor.View()[Role::kRowwiseData].data);
}

TEST(QuantizedTensorTest, LeadingDimensionsMayChangeInEveryScheme) {
  for (const SchemeInfo& scheme : kSchemes) {
    const std::string spec = std::string(scheme.name) + ":columnwise=1";
    const QuantizedTensor tensor = MakeTensor(spec.c_str(), {2, 48, 40});
    const QuantizedTensor other = tensor.Reshape({-1, 3, 4, 40});
    // Quantizing the same values in the new shape gives the same buffers.
    ExpectSameBuffers(other.ConstView(), MakeTensor(spec.c_str(), {8, 3, 4, 40}).ConstView());
    EXPECT_EQ(other.ConstView()[Role::kColumnwiseData].data,
              tensor.ConstView()[Role::kColumnwiseData].data);
  }
}

TEST(QuantizedTensorTest, OneScaleLetsTheLastDimensionChangeAndLeavesTheTransposeBehind) {
  const QuantizedTensor tensor = MakeTensor("fp8_e4m3:columnwise=1", {6, 4});
  const QuantizedTensor other = tensor.Reshape({3, 8});
  ExpectSameBuffers(other.ConstView(), MakeTensor("fp8_e4m3", {3, 8}).ConstView());
  const QuantizedTensor scalar = MakeTensor("fp8_e4m3", {1}).Reshape({});
  EXPECT_EQ(scalar.GetShape(), Shape{});
}

TEST(QuantizedTensorTest, ReshapeErrorsNameTheRule) {
  const auto reshape = [](const char* spec, const Shape& shape) {
    return MessageOf<InvalidArgument>([&] { (void)MakeTensor(spec, {4, 32}).Reshape(shape); });
  };
  EXPECT_EQ(
      reshape("mxfp8_e4m3", {2, 64}),
      "reshape: mxfp8_e4m3 cuts blocks along the last dimension, which must stay 32, got 2x64");
  EXPECT_EQ(reshape("mxfp8_e4m3", {5, 32}),
            "reshape: the new shape must have as many elements as 4x32, got 5x32");
  EXPECT_EQ(reshape("mxfp8_e4m3", {-1, 5}),
            "reshape: the new shape must have as many elements as 4x32, got -1x5");
  EXPECT_EQ(reshape("mxfp8_e4m3", {-1, 0}),
            "reshape: the new shape must have as many elements as 4x32, got -1x0");
  EXPECT_EQ(reshape("mxfp8_e4m3", {-1, -1}), "reshape: only one dimension can be -1, got -1x-1");
  EXPECT_EQ(reshape("mxfp8_e4m3", {-4, -32}), "shape: dimensions must not be negative, got -4x-32");
  try {
    (void)MakeTensor("fp8_e4m3:columnwise=1,rowwise=0", {4, 32}).Reshape({2, 64});
    FAIL() << "columnwise codes alone were reshaped";
  } catch (const Unsupported& error) {
    EXPECT_STREQ(
        error.what(),
        "reshape: fp8_e4m3 with columnwise codes alone must keep its last dimension 32, got 2x64");
  }
}

TEST(QuantizedTensorTest, TheNamesOfTransformerEngineHoldTheirOwnSchemesOnly) {
  const Float8Tensor float8(MakeTensor("fp8_e4m3", {2, 2}));
  EXPECT_EQ(float8.Spec().scheme->name, "fp8_e4m3");
  const MXFP8Tensor mxfp8(MakeTensor("mxfp8_2d_e5m2", {2, 2}).GetMetadata());
  EXPECT_EQ(mxfp8.Spec().scheme->name, "mxfp8_2d_e5m2");
  const MXFP8TensorStorage storage(QuantizedTensorStorage(ParseQuantSpec("mxfp8_e4m3"), {2, 2}));
  EXPECT_TRUE(storage.HoldsBuffers());
  QuantizedTensor tensor = MakeTensor("mxfp8_e4m3", {2, 2});
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Float8Tensor{std::move(tensor)}; }),
            "quantized_tensor: Float8Tensor cannot hold mxfp8_e4m3");
  EXPECT_TRUE(tensor.HoldsBuffers());  // NOLINT: a rejected call moves no buffers
  EXPECT_EQ(
      MessageOf<InvalidArgument>([&] { MXFP8Tensor{MakeTensor("fp8_e5m2", {2}).GetMetadata()}; }),
      "quantized_tensor: MXFP8Tensor cannot hold fp8_e5m2");
  EXPECT_EQ(MessageOf<InvalidArgument>([] {
              MXFP8Tensor{QuantizedTensorMetadata{{.scheme = nullptr}, {2}, DType::kFloat32, {}}};
            }),
            "spec: scheme must point to an element of kSchemes, got null");
}

TEST(QuantizedTensorTest, TheNamesOfTransformerEngineMeanItsBlocks) {
  SchemeInfo mxfp8 = FindScheme("mxfp8_e4m3"), fp8 = FindScheme("fp8_block128x128_e4m3");
  EXPECT_TRUE(kMxfp8Family.contains(mxfp8));
  EXPECT_TRUE(kFloat8BlockFamily.contains(fp8));
  mxfp8.block.cols = fp8.block.rows = fp8.block.cols = 64;
  EXPECT_FALSE(kMxfp8Family.contains(mxfp8));
  EXPECT_FALSE(kFloat8BlockFamily.contains(fp8));
}

}  // namespace
}  // namespace narrowfloat
