// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/saving.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/testing.h"
#include "narrowfloat/types/types_testing.h"

namespace narrowfloat {
namespace {

QuantizedTensor MakeTensor(const char* spec, const Shape& shape = {32, 64}) {
  QuantizedTensor tensor(ParseQuantSpec(spec), shape);
  Quantize(MakeInput(shape).ConstView(), tensor.View());
  return tensor;
}

std::vector<Shape> ShapesOf(const std::vector<OwnedTensor>& tensors) {
  std::vector<Shape> shapes;
  for (const OwnedTensor& tensor : tensors) shapes.push_back(tensor.shape());
  return shapes;
}

TEST(SavingTest, BuffersComeCodesFirstAndSharedOnesOnce) {
  EXPECT_EQ(ShapesOf(MakeTensor("mxfp8_e4m3:columnwise=1").PrepareForSaving()),
            (std::vector<Shape>{{32, 64}, {32, 64}, {128, 4}, {4, 128}}));
  EXPECT_EQ(ShapesOf(MakeTensor("fp8_e4m3:columnwise=1").PrepareForSaving()),
            (std::vector<Shape>{{32, 64}, {64, 32}, {1}, {1}, {1}}));
}

TEST(SavingTest, OwnershipMovesOutAndBackWithoutACopy) {
  QuantizedTensor tensor = MakeTensor("fp8_e4m3:columnwise=1");
  const QuantizedTensor expected = tensor.Clone();
  const std::byte* const codes = tensor.ConstView()[Role::kRowwiseData].data;
  std::vector<OwnedTensor> saved = tensor.PrepareForSaving();
  EXPECT_EQ(saved[0].data(), codes);
  EXPECT_FALSE(tensor.Has(Role::kRowwiseData));
  saved.emplace_back(DType::kFloat32, Shape{9});
  const std::span<OwnedTensor> rest = tensor.RestoreFromSaved(saved);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].shape(), Shape{9});
  ExpectSameBuffers(tensor.ConstView(), expected.ConstView());
  EXPECT_EQ(tensor.ConstView()[Role::kRowwiseData].data, codes);
  EXPECT_EQ(tensor.ConstView()[Role::kColumnwiseScaleInv].data,
            tensor.ConstView()[Role::kRowwiseScaleInv].data);
  EXPECT_FALSE(saved[0]);
}

TEST(SavingTest, AfterPreparingTheStorageHoldsNothing) {
  QuantizedTensor tensor = MakeTensor("mxfp8_e4m3");
  const std::vector<OwnedTensor> saved = tensor.PrepareForSaving();
  const std::string why =
      ": the mxfp8_e4m3 tensor of shape 32x64 was prepared for saving and holds no buffers";
  EXPECT_FALSE(tensor.HoldsBuffers());
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)tensor.View(); }), "view" + why);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)tensor.ConstView(); }), "view" + why);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)tensor.Dequantize(); }), "dequantize" + why);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)tensor.GetMetadata(); }), "get_metadata" + why);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)tensor.Alias(); }), "get_metadata" + why);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { tensor.UpdateUsage(true, {}); }),
            "update_usage" + why);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)tensor.PrepareForSaving(); }),
            "prepare_for_saving" + why);
  EXPECT_EQ(tensor.GetShape(), (Shape{32, 64}));
}

TEST(SavingTest, TheLastBufferGoesWithTheListThatOwnsIt) {
  QuantizedTensor tensor = MakeTensor("mxfp8_e4m3");
  const QuantizedTensor alias = tensor.Alias();
  { const std::vector<OwnedTensor> saved = tensor.PrepareForSaving(); }
  // The alias still owns the shared buffers. ASan would report a buffer that is freed too early.
  ExpectSameBuffers(alias.ConstView(), MakeTensor("mxfp8_e4m3").ConstView());
}

TEST(SavingTest, RestoringTwiceIsAnError) {
  QuantizedTensor tensor = MakeTensor("mxfp8_e4m3");
  const std::string message =
      "restore_from_saved: the mxfp8_e4m3 tensor of shape 32x64 must be prepared for saving and "
      "not restored yet";
  std::vector<OwnedTensor> none;
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { tensor.RestoreFromSaved(none); }), message);
  std::vector<OwnedTensor> saved = tensor.PrepareForSaving();
  tensor.RestoreFromSaved(saved);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { tensor.RestoreFromSaved(saved); }), message);
}

TEST(SavingTest, WrongTensorsAreRefusedBeforeAnythingMoves) {
  QuantizedTensor tensor = MakeTensor("mxfp8_e4m3");
  std::vector<OwnedTensor> saved = tensor.PrepareForSaving();
  const std::string head = "restore_from_saved: ", name = "the mxfp8_e4m3 tensor of shape 32x64";
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { tensor.RestoreFromSaved(std::span(saved).first(1)); }),
            head + name + " needs 2 buffers, got 1");
  std::swap(saved[0], saved[1]);
  EXPECT_EQ(
      MessageOf<InvalidArgument>([&] { tensor.RestoreFromSaved(saved); }),
      "restore_from_saved: rowwise_data of the mxfp8_e4m3 tensor of shape 32x64 must be uint8 of "
      "shape 32x64, got uint8 of shape 128x4");
  std::swap(saved[0], saved[1]);
  OwnedTensor scale_inv = std::exchange(saved[1], {});
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { tensor.RestoreFromSaved(saved); }),
            head + "rowwise_scale_inv of " + name + " must be uint8 of shape 128x4, got nothing");
  saved[1] = OwnedTensor(DType::kFloat32, {128, 4});
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { tensor.RestoreFromSaved(saved); }),
            head + "rowwise_scale_inv of " + name +
                " must be uint8 of shape 128x4, got float32 of shape 128x4");
  EXPECT_TRUE(saved[0]);
  EXPECT_FALSE(tensor.HoldsBuffers());
  saved[1] = std::move(scale_inv);
  tensor.RestoreFromSaved(saved);
  ExpectSameBuffers(tensor.ConstView(), MakeTensor("mxfp8_e4m3").ConstView());
}

TEST(SavingTest, WhatWasClearedOrDroppedComesBackAsItWas) {
  QuantizedTensor cleared = MakeTensor("mxfp8_e4m3"), dropped = MakeTensor("mxfp8_e4m3");
  cleared.Clear();
  dropped.UpdateUsage(false, false);
  SavedTensors saved = PrepareForSaving(&cleared, &dropped);
  EXPECT_TRUE(saved.buffers.empty());
  RestoredTensors restored = RestoreFromSaved(saved.objects, saved.buffers);
  EXPECT_EQ(MessageOf<InvalidArgument>(
                [&] { (void)std::get<QuantizedTensor>(restored.tensors[0]).View(); }),
            "view: the mxfp8_e4m3 tensor of shape 32x64 was cleared and holds no buffers");
  EXPECT_EQ(
      MessageOf<InvalidArgument>(
          [&] { (void)std::get<QuantizedTensor>(restored.tensors[1]).View(); }),
      "view: the mxfp8_e4m3 tensor of shape 32x64 dropped both directions and holds no buffers");
}

/// Tensors of a list: a plain tensor, a quantized one, a null pointer, and another plain tensor.
class SavingListTest : public testing::Test {
 protected:
  OwnedTensor plain = MakeInput({4, 5});
  QuantizedTensor quantized = MakeTensor("mxfp8_e5m2:columnwise=1");
  OwnedTensor last = MakeInput({3}, DType::kBFloat16);
  QuantizedTensorStorage* none = nullptr;
};

TEST_F(SavingListTest, AMixedListComesBackInOrder) {
  const OwnedTensor plain_copy = plain.Clone(), last_copy = last.Clone();
  SavedTensors saved = PrepareForSaving(&plain, &quantized, none, nullptr, &last);
  ASSERT_EQ(saved.objects.size(), 5u);
  ASSERT_EQ(saved.buffers.size(), 8u);
  EXPECT_EQ(saved.objects[1].TensorCount(), 4u);
  EXPECT_FALSE(plain);
  EXPECT_FALSE(quantized.HoldsBuffers());
  saved.buffers.emplace_back(DType::kUInt8, Shape{1});

  RestoredTensors restored = RestoreFromSaved(saved.objects, saved.buffers);
  ASSERT_EQ(restored.tensors.size(), 5u);
  EXPECT_TRUE(
      SameBytes(std::get<OwnedTensor>(restored.tensors[0]).ConstView(), plain_copy.ConstView()));
  ExpectSameBuffers(std::get<QuantizedTensor>(restored.tensors[1]).ConstView(),
                    MakeTensor("mxfp8_e5m2:columnwise=1").ConstView());
  EXPECT_TRUE(std::holds_alternative<std::monostate>(restored.tensors[2]));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(restored.tensors[3]));
  EXPECT_TRUE(
      SameBytes(std::get<OwnedTensor>(restored.tensors[4]).ConstView(), last_copy.ConstView()));
  EXPECT_EQ(restored.rest.size(), 1u);
}

TEST_F(SavingListTest, AListIsRestoredOnce) {
  SavedTensors saved = PrepareForSaving(&plain, &quantized);
  RestoreFromSaved(saved.objects, saved.buffers);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { RestoreFromSaved(saved.objects, saved.buffers); }),
            "restore_from_saved: tensor 0 must not be restored twice");
}

TEST_F(SavingListTest, AFaultAtTheEndLeavesTheWholeListAsItWas) {
  SavedTensors saved = PrepareForSaving(&plain, &quantized, nullptr, &last);
  const auto restore = [&](std::span<OwnedTensor> buffers) {
    return MessageOf<InvalidArgument>([&] { RestoreFromSaved(saved.objects, buffers); });
  };
  const std::span<OwnedTensor> buffers(saved.buffers);
  EXPECT_EQ(restore(buffers.first(6)), "restore_from_saved: tensor 3 needs 1 buffer, got 0");
  EXPECT_EQ(restore(buffers.first(3)),
            "restore_from_saved: the mxfp8_e5m2 tensor of shape 32x64 needs 4 buffers, got 2");
  std::swap(saved.buffers[5], saved.buffers[6]);
  EXPECT_EQ(restore(buffers),
            "restore_from_saved: tensor 2 must be nothing, got bfloat16 of shape 3");
  std::swap(saved.buffers[5], saved.buffers[6]);
  std::swap(saved.buffers[0], saved.buffers[6]);
  EXPECT_EQ(restore(buffers),
            "restore_from_saved: tensor 0 must be float32 of shape 4x5, got bfloat16 of shape 3");
  std::swap(saved.buffers[0], saved.buffers[6]);
  EXPECT_EQ(RestoreFromSaved(saved.objects, saved.buffers).tensors.size(), 4u);
}

TEST_F(SavingListTest, ATensorNamedTwiceOrPreparedIsRefusedBeforeAnythingMoves) {
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { PrepareForSaving(&plain, &quantized, &quantized); }),
            "prepare_for_saving: tensors must differ, got the same one at 1 and 2");
  QuantizedTensor prepared = MakeTensor("fp8_e4m3");
  const std::vector<OwnedTensor> buffers = prepared.PrepareForSaving();
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { PrepareForSaving(&plain, &quantized, &prepared); }),
            "prepare_for_saving: the fp8_e4m3 tensor of shape 32x64 was prepared for saving and "
            "holds no buffers");
  EXPECT_TRUE(plain);
  EXPECT_TRUE(quantized.HoldsBuffers());
}

}  // namespace
}  // namespace narrowfloat
