// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

/// Returns the plan as text. Each line has a buffer's role, type and shape, and if it shares the
/// memory of another buffer, that buffer's role.
std::string PlanOf(std::string_view spec, const Shape& shape) {
  std::string text;
  for (const BufferPlan& buffer : PlanQuantize(ParseQuantSpec(spec), shape)) {
    text += fmt::format("{} {} {}", RoleName(buffer.role), DTypeName(buffer.dtype),
                        ShapeText(buffer.shape));
    if (buffer.storage != buffer.role) text += fmt::format(" in {}", RoleName(buffer.storage));
    text += "\n";
  }
  return text;
}

TEST(PlanQuantizeTest, PerTensorFp8) {
  EXPECT_EQ(PlanOf("fp8_e4m3", {2, 3, 20}),
            "rowwise_data uint8 2x3x20\n"
            "rowwise_scale_inv float32 1\n"
            "scale float32 1\n"
            "amax_rowwise float32 1\n");
}

TEST(PlanQuantizeTest, PerTensorFp8InBothDirectionsSharesItsScaleInv) {
  EXPECT_EQ(PlanOf("fp8_e5m2:columnwise=1", {2, 3, 20}),
            "rowwise_data uint8 2x3x20\n"
            "rowwise_scale_inv float32 1\n"
            "columnwise_data uint8 20x2x3\n"
            "columnwise_scale_inv float32 1 in rowwise_scale_inv\n"
            "scale float32 1\n"
            "amax_rowwise float32 1\n");
}

TEST(PlanQuantizeTest, ColumnwiseOnlyKeepsItsOwnScaleInv) {
  EXPECT_EQ(PlanOf("fp8_e4m3:columnwise=1,rowwise=0", {48, 24}),
            "columnwise_data uint8 24x48\n"
            "columnwise_scale_inv float32 1\n"
            "scale float32 1\n"
            "amax_rowwise float32 1\n");
}

TEST(PlanQuantizeTest, Mxfp8PadsItsScalesAndKeepsTheOrientation) {
  for (const char* scheme : {"mxfp8_e4m3", "mxfp8_2d_e5m2"}) {
    for (const char* options : {":columnwise=1", ":columnwise=1,swizzled=1"}) {
      EXPECT_EQ(PlanOf(std::string(scheme) + options, {130, 300}),
                "rowwise_data uint8 130x300\n"
                "rowwise_scale_inv uint8 256x12\n"
                "columnwise_data uint8 130x300\n"
                "columnwise_scale_inv uint8 8x384\n");
    }
  }
}

TEST(PlanQuantizeTest, ScalarsVectorsAndEmptyTensors) {
  EXPECT_EQ(PlanOf("mxfp8_e4m3:columnwise=1", {}),
            "rowwise_data uint8 scalar\n"
            "rowwise_scale_inv uint8 128x4\n"
            "columnwise_data uint8 scalar\n"
            "columnwise_scale_inv uint8 4x128\n");
  EXPECT_EQ(PlanOf("fp8_e4m3:columnwise=1,rowwise=0", {7}),
            "columnwise_data uint8 7\n"
            "columnwise_scale_inv float32 1\n"
            "scale float32 1\n"
            "amax_rowwise float32 1\n");
  EXPECT_EQ(PlanOf("mxfp8_e4m3:columnwise=1", {0, 64}),
            "rowwise_data uint8 0x64\n"
            "rowwise_scale_inv uint8 0x4\n"
            "columnwise_data uint8 0x64\n"
            "columnwise_scale_inv uint8 0x128\n");
}

TEST(PlanQuantizeTest, ThreeDimensionsFlattenForScalesOnly) {
  EXPECT_EQ(PlanOf("mxfp8_e5m2", {4, 40, 33}),
            "rowwise_data uint8 4x40x33\n"
            "rowwise_scale_inv uint8 256x4\n");
}

TEST(PlanQuantizeTest, PackedCodesAndTheirAmaxes) {
  EXPECT_EQ(PlanOf("nvfp4:columnwise=1", {2, 24, 96}),
            "rowwise_data uint8 2x24x48\n"
            "rowwise_scale_inv uint8 128x8\n"
            "columnwise_data uint8 96x2x12\n"
            "columnwise_scale_inv uint8 128x4\n"
            "amax_rowwise float32 1\n"
            "amax_columnwise float32 1\n");
  // The last dimension, 3, is odd and cannot be halved: it is merged with 2, and 6 is halved.
  EXPECT_EQ(PlanOf("nvfp4:columnwise=1,row_scaled=1,rowwise=0", {2, 3, 8}),
            "columnwise_data uint8 8x3\n"
            "columnwise_scale_inv uint8 128x4\n"
            "amax_columnwise float32 8\n");
  EXPECT_EQ(PlanOf("nvfp4", {0, 64}),
            "rowwise_data uint8 0x32\n"
            "rowwise_scale_inv uint8 0x4\n"
            "amax_rowwise float32 1\n");
}

std::string ErrorOf(const char* spec, const Shape& shape) {
  return MessageOf<InvalidArgument>(
      [&] { static_cast<void>(PlanQuantize(ParseQuantSpec(spec), shape)); });
}

TEST(PlanQuantizeTest, RefusesColumnsThatAreTooManyRowsOfColumnwiseBuffers) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const SchemeInfo& scheme : kSchemes) {
    const std::string spec = std::string(scheme.name) + ":columnwise=1";
    EXPECT_EQ(ErrorOf(spec.c_str(), {0, kHuge}),
              "shape: 0x9223372036854775807 has more columns than memory can address");
  }
  EXPECT_EQ(ErrorOf("mxfp8_e4m3", {0, kHuge}), "no error");
}

TEST(PlanQuantizeTest, RefusesWhatDoesNotFillItsBytes) {
  EXPECT_EQ(
      ErrorOf("nvfp4", {2, 33}),
      "quantize: nvfp4 packs two codes in a byte and needs an even number of columns, got 33");
  EXPECT_EQ(ErrorOf("nvfp4_2d:columnwise=1,rowwise=0", {3, 32}),
            "quantize: nvfp4_2d packs two codes in a byte and needs an even number of rows for its "
            "columnwise codes, got 3");
  EXPECT_EQ(ErrorOf("nvfp4:columnwise=1,rht=1", {24, 32}),
            "quantize: rht needs a number of rows that is a multiple of 16, got 24");
  EXPECT_EQ(ErrorOf("nvfp4:rht=1", {24, 32}), "no error");
}

TEST(BufferBytesTest, IsItemsTimesTheirSize) {
  EXPECT_EQ(BufferBytes({Role::kScale, DType::kFloat32, {1}, Role::kScale}), 4u);
  EXPECT_EQ(BufferBytes({Role::kRowwiseData, DType::kUInt8, {3, 5}, Role::kRowwiseData}), 15u);
  EXPECT_EQ(BufferBytes({Role::kRowwiseData, DType::kUInt8, {0, 5}, Role::kRowwiseData}), 0u);
}

}  // namespace
}  // namespace narrowfloat
