// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/swizzle.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/ops/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

const Shape kShape{64, 64};
const Floats kItems(64 * 64, 1.0f);

/// Returns the message of the error that `verb` throws. Checks that the output is unchanged.
std::string Refusal(void (*verb)(const ConstQuantizedView&, const QuantizedView&, const Execution&),
                    const ConstQuantizedView& in, Quantized& out) {
  const auto before = out.memory;
  const std::string message = MessageOf<InvalidArgument>([&] { verb(in, out.view, {}); });
  EXPECT_EQ(out.memory, before);
  return message;
}

TEST(SwizzleTest, ADirectionWithoutBuffersIsLeftOut) {
  const Quantized rows("mxfp8_e4m3:columnwise=1", kShape, kItems);
  Quantized out("mxfp8_e4m3:columnwise=1,swizzled=1", kShape, Floats(64 * 64, 0.0f));
  QuantizedView in = rows.view;
  in[Role::kColumnwiseData] = in[Role::kColumnwiseScaleInv] = {};
  const auto columns = out.Bytes(Role::kColumnwiseScaleInv);
  Swizzle(in, out.view);
  EXPECT_EQ(out.Bytes(Role::kRowwiseScaleInv)[0], std::byte{119});
  EXPECT_EQ(out.Bytes(Role::kColumnwiseScaleInv), columns);
}

TEST(SwizzleTest, MissingBuffersAreRefused) {
  const Quantized compact("mxfp8_e4m3", kShape, kItems);
  Quantized swizzled("mxfp8_e4m3:swizzled=1", kShape, Floats(64 * 64, 0.0f));
  QuantizedView in = compact.view;
  in[Role::kRowwiseData] = {};
  EXPECT_EQ(Refusal(&Swizzle, in, swizzled), "swizzle: rowwise_data is missing");
  in = compact.view;
  in[Role::kRowwiseScaleInv] = {};
  EXPECT_EQ(Refusal(&Swizzle, in, swizzled), "swizzle: rowwise_scale_inv is missing");
  in[Role::kRowwiseData] = {};
  EXPECT_EQ(Refusal(&Swizzle, in, swizzled),
            "swizzle: mxfp8_e4m3 needs data and scale_inv of one direction, got neither rowwise "
            "nor columnwise");
  Quantized back("mxfp8_e4m3", kShape, Floats(64 * 64, 0.0f));
  in.spec.swizzled = true;
  EXPECT_EQ(Refusal(&Unswizzle, in, back),
            "unswizzle: mxfp8_e4m3 needs data and scale_inv of one direction, got neither rowwise "
            "nor columnwise");
}

TEST(SwizzleTest, ScalesMustNotBeInsideSharedCodes) {
  const Quantized in("mxfp8_e4m3", {128, 128}, Floats(128 * 128, 1.0f));
  QuantizedView out = in.view;
  out.spec.swizzled = true;
  out[Role::kRowwiseScaleInv].data = in.view[Role::kRowwiseData].data;
  EXPECT_EQ(MessageOf([&] { Swizzle(in.view, out); }),
            "swizzle: rowwise_scale_inv must not overlap rowwise_data of the input");
}

TEST(SwizzleTest, OneOfTwoDirectionsMustNotLackAPart) {
  const Quantized compact("nvfp4:columnwise=1", kShape, kItems);
  Quantized swizzled("nvfp4:columnwise=1,swizzled=1", kShape, Floats(64 * 64, 0.0f));
  QuantizedView in = compact.view;
  in[Role::kColumnwiseScaleInv] = {};
  EXPECT_EQ(Refusal(&Swizzle, in, swizzled), "swizzle: columnwise_scale_inv is missing");
}

TEST(SwizzleTest, EmptyTensorsNeedNoMemory) {
  const Quantized compact("mxfp8_e4m3", {0, 64}, {});
  Quantized swizzled("mxfp8_e4m3:swizzled=1", {0, 64}, {});
  EXPECT_EQ(MessageOf([&] { Swizzle(compact.view, swizzled.view); }), "no error");
}

// One dimension of an empty tensor is too large for a loop.
const Shape kManyRows{std::int64_t{1} << 59, 0}, kManyColumns{0, std::int64_t{1} << 59};

TEST(SwizzleTest, TheLinesOfAnEmptyTensorTakeNoTime) {
  for (const Shape& shape : {kManyRows, kManyColumns}) {
    for (const char* name : {"mxfp8_e4m3", "nvfp4_2d"}) {
      QuantSpec spec = ParseQuantSpec(name);
      spec.columnwise = true;
      const Quantized compact(spec, shape, {});
      spec.swizzled = true;
      const Quantized swizzled(spec, shape, {});
      EXPECT_EQ(MessageOf([&] { Swizzle(compact.view, swizzled.view); }), "no error");
      EXPECT_EQ(MessageOf([&] { Unswizzle(swizzled.view, compact.view); }), "no error");
    }
  }
}

TEST(BlockScalesToMxfp8Test, TheLinesOfAnEmptyTensorTakeNoTime) {
  for (const char* spec : {"fp8_block128x128_e4m3", "fp8_block1x128_e5m2"}) {
    const Quantized in(spec, kManyRows, {});
    const TensorView scales{nullptr, DType::kUInt8, Mxfp8ScalesShape(in.view, Direction::kRowwise)};
    const auto convert = [&] { BlockScalesToMxfp8(in.view, Direction::kRowwise, scales); };
    EXPECT_EQ(MessageOf(convert), "no error");
  }
}

}  // namespace
}  // namespace narrowfloat
