// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/quantized_tensor_storage.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <utility>

#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/testing.h"
#include "narrowfloat/types/types_testing.h"

namespace narrowfloat {
namespace {

static_assert(!std::is_copy_constructible_v<QuantizedTensorStorage>);
static_assert(std::is_nothrow_move_constructible_v<QuantizedTensorStorage>);

const Shape kShape{3, 32, 64};

QuantizedTensorStorage MakeStorage(const char* spec, const Shape& shape = kShape) {
  QuantizedTensorStorage storage(ParseQuantSpec(spec), shape);
  Quantize(MakeInput(shape).ConstView(), storage.View());
  return storage;
}

class EverySchemeTest : public testing::TestWithParam<SchemeInfo> {
 protected:
  QuantSpec SpecOf(bool rowwise, bool columnwise) const {
    return {.scheme = &FindScheme(GetParam().name), .rowwise = rowwise, .columnwise = columnwise};
  }
  QuantizedTensorStorage Make(bool rowwise, bool columnwise) const {
    return MakeStorage(PrintQuantSpec(SpecOf(rowwise, columnwise)).c_str());
  }
};

INSTANTIATE_TEST_SUITE_P(Registry, EverySchemeTest, testing::ValuesIn(kSchemes),
                         [](const auto& scheme) { return std::string(scheme.param.name); });

TEST_P(EverySchemeTest, HasThePlannedBuffersAndSharesWhatThePlanShares) {
  QuantizedTensorStorage storage = Make(true, true);
  CheckBuffers("test", storage.ConstView());
  for (const BufferPlan& planned : PlanQuantize(storage.Spec(), kShape)) {
    EXPECT_TRUE(storage.Has(planned.role));
    EXPECT_EQ(storage.View()[planned.role].data, storage.View()[planned.storage].data);
  }
}

TEST_P(EverySchemeTest, DequantizeIsTheVerb) {
  const QuantizedTensorStorage storage = Make(true, false);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    OwnedTensor expected(dtype, kShape);
    Dequantize(storage.ConstView(), expected.View());
    EXPECT_TRUE(SameBytes(storage.Dequantize(dtype).ConstView(), expected.ConstView()));
  }
  EXPECT_EQ(storage.Dequantize().dtype(), DType::kFloat32);
}

TEST_P(EverySchemeTest, MetadataMakesAnAlias) {
  QuantizedTensorStorage storage = Make(true, true);
  QuantizedTensorStorage alias(storage.GetMetadata());
  ExpectSameBuffers(alias.ConstView(), storage.ConstView());
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    EXPECT_EQ(alias.View().buffers[i].data, storage.View().buffers[i].data);
  }
  storage.Clear();
  EXPECT_TRUE(alias.HoldsBuffers());
}

TEST_P(EverySchemeTest, DroppingADirectionLeavesTheOtherAsIfMadeAlone) {
  QuantizedTensorStorage rowwise = Make(true, true);
  rowwise.UpdateUsage(true, false);
  ExpectSameBuffers(rowwise.ConstView(), Make(true, false).ConstView());
  QuantizedTensorStorage columnwise = Make(true, true);
  columnwise.UpdateUsage(false, std::nullopt);
  ExpectSameBuffers(columnwise.ConstView(), Make(false, true).ConstView());
}

TEST_P(EverySchemeTest, RowwiseCannotBeMade) {
  QuantizedTensorStorage storage = Make(false, true);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { storage.UpdateUsage(true, false); }),
            "update_usage: the " + std::string(GetParam().name) +
                " tensor of shape 3x32x64 needs rowwise buffers, which cannot be derived from the "
                "others");
  ExpectSameBuffers(storage.ConstView(), Make(false, true).ConstView());
}

TEST_P(EverySchemeTest, ColumnwiseIsMadeByTransposingOrNotAtAll) {
  QuantizedTensorStorage storage = Make(true, false);
  if (DerivesColumnwise(GetParam())) {
    storage.UpdateUsage(std::nullopt, true);
    ExpectSameBuffers(storage.ConstView(), Make(true, true).ConstView());
    const bool shares = storage.View()[Role::kRowwiseScaleInv].data ==
                        storage.View()[Role::kColumnwiseScaleInv].data;
    EXPECT_EQ(shares, GetParam().block == kWholeTensor);
  } else {
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { storage.UpdateUsage(std::nullopt, true); }),
              "update_usage: the " + std::string(GetParam().name) +
                  " tensor of shape 3x32x64 needs columnwise buffers, which cannot be derived from "
                  "the others");
    ExpectSameBuffers(storage.ConstView(), Make(true, false).ConstView());
  }
}

TEST(QuantizedTensorStorageTest, ColumnsOfSquareTilesFollowFromCompactRows) {
  QuantizedTensorStorage tiles = MakeStorage("nvfp4_2d:swizzled=1");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { tiles.UpdateUsage(std::nullopt, true); }),
            "update_usage: the nvfp4_2d tensor of shape 3x32x64 needs columnwise buffers, which "
            "cannot be derived from the others");
  tiles = MakeStorage("fp8_block128x128_e4m3");
  tiles.UpdateUsage(false, true);
  ExpectSameBuffers(tiles.ConstView(),
                    MakeStorage("fp8_block128x128_e4m3:columnwise=1,rowwise=0").ConstView());
}

TEST(QuantizedTensorStorageTest, ATransposeReplacesTheRowsItCameFrom) {
  for (const Shape& shape :
       {Shape{}, Shape{7}, Shape{1, 5}, Shape{0, 4}, Shape{130, 67}, Shape{300, 701}}) {
    QuantizedTensorStorage storage = MakeStorage("fp8_e5m2", shape);
    storage.UpdateUsage(false, true);
    ExpectSameBuffers(storage.ConstView(),
                      MakeStorage("fp8_e5m2:columnwise=1,rowwise=0", shape).ConstView());
  }
}

TEST(QuantizedTensorStorageTest, BothDirectionsMayBeDroppedAndThenNothingCanBeMade) {
  QuantizedTensorStorage storage = MakeStorage("fp8_e4m3");
  storage.UpdateUsage(false, false);
  storage.UpdateUsage(false, std::nullopt);
  EXPECT_FALSE(storage.HoldsBuffers());
  EXPECT_FALSE(storage.Has(Role::kScale));
  EXPECT_EQ(
      MessageOf<InvalidArgument>([&] { storage.View(); }),
      "view: the fp8_e4m3 tensor of shape 3x32x64 dropped both directions and holds no buffers");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { storage.UpdateUsage(std::nullopt, true); }),
            "update_usage: the fp8_e4m3 tensor of shape 3x32x64 needs columnwise buffers, which "
            "cannot be derived from the others");
}

TEST(QuantizedTensorStorageTest, ClearReleasesAndMayBeRepeated) {
  QuantizedTensorStorage storage = MakeStorage("mxfp8_e4m3");
  storage.Clear();
  storage.Clear();
  EXPECT_FALSE(storage.Has(Role::kRowwiseData));
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)storage.Dequantize(); }),
            "dequantize: the mxfp8_e4m3 tensor of shape 3x32x64 was cleared and holds no buffers");
  EXPECT_EQ(
      MessageOf<InvalidArgument>([&] { storage.UpdateUsage(true, std::nullopt); }),
      "update_usage: the mxfp8_e4m3 tensor of shape 3x32x64 was cleared and holds no buffers");
}

TEST(QuantizedTensorStorageTest, MovingLeavesNothingBehind) {
  QuantizedTensorStorage from = MakeStorage("mxfp8_e4m3");
  QuantizedTensorStorage to = std::move(from);
  ExpectSameBuffers(to.ConstView(), MakeStorage("mxfp8_e4m3").ConstView());
  EXPECT_EQ(MessageOf<InvalidArgument>(
                [&] { (void)from.ConstView(); }),  // NOLINT: tests a moved-from one
            "view: the mxfp8_e4m3 tensor was moved from and holds no buffers");
  from = std::move(to);
  EXPECT_TRUE(from.HoldsBuffers());
  EXPECT_FALSE(to.HoldsBuffers());  // NOLINT
}

TEST(QuantizedTensorStorageTest, TakesBuffersThatExistAndDoesWithoutScaleAndAmax) {
  QuantizedTensorMetadata metadata = MakeStorage("fp8_e4m3:columnwise=1").GetMetadata();
  BufferOf(metadata.buffers, Role::kScale) = {};
  BufferOf(metadata.buffers, Role::kAmaxRowwise) = {};
  BufferOf(metadata.buffers, Role::kColumnwiseScaleInv) = {};
  QuantizedTensorStorage storage(std::move(metadata));
  EXPECT_TRUE(storage.Has(Role::kColumnwiseScaleInv));
  EXPECT_TRUE(SameBytes(storage.Dequantize().ConstView(),
                        MakeStorage("fp8_e4m3").Dequantize().ConstView()));
  storage.UpdateUsage(true, false);
  storage.UpdateUsage(true, true);
  EXPECT_FALSE(storage.Has(Role::kScale));
}

TEST(QuantizedTensorStorageTest, RefusesBuffersThatAreNotThePlans) {
  const auto with = [](Role role, OwnedTensor buffer) {
    return MessageOf<InvalidArgument>([&] {
      QuantizedTensorMetadata metadata = MakeStorage("fp8_e4m3:columnwise=1").GetMetadata();
      BufferOf(metadata.buffers, role) = std::move(buffer);
      QuantizedTensorStorage{std::move(metadata)};
    });
  };
  EXPECT_EQ(with(Role::kRowwiseData, {}), "quantized_tensor: rowwise_data is missing");
  EXPECT_EQ(
      with(Role::kRowwiseData, {DType::kUInt8, {96, 64}}),
      "quantized_tensor: rowwise_data must be uint8 of shape 3x32x64, got uint8 of shape 96x64");
  EXPECT_EQ(with(Role::kScale, {DType::kFloat16, {1}}),
            "quantized_tensor: scale must be float32 of shape 1, got float16 of shape 1");
  EXPECT_EQ(with(Role::kColumnwiseScaleInv, {DType::kFloat32, {1}}),
            "quantized_tensor: columnwise_scale_inv must be the memory of rowwise_scale_inv");
  EXPECT_EQ(with(Role::kAmaxColumnwise, {DType::kFloat32, {1}}),
            "quantized_tensor: buffers must be those of the plan, got amax_columnwise");
  EXPECT_EQ(MessageOf<InvalidArgument>(
                [] { QuantizedTensorStorage(ParseQuantSpec("fp8_e4m3"), {4}, DType::kUInt8); }),
            "quantized_tensor: the nominal type must be a float type, got uint8");
}

}  // namespace
}  // namespace narrowfloat
