// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/quantizer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/testing.h"
#include "narrowfloat/types/float8_block_tensor.h"
#include "narrowfloat/types/float8_tensor.h"
#include "narrowfloat/types/mxfp8_tensor.h"
#include "narrowfloat/types/nvfp4_tensor.h"
#include "narrowfloat/types/types_testing.h"
#include "tests/conformance/float_settings.h"

namespace narrowfloat {
namespace {

const Shape kShape{2, 32, 64};

/// Returns the result of the verb Quantize for `in`.
QuantizedTensorStorage ByVerb(const char* spec, const OwnedTensor& in) {
  QuantizedTensorStorage storage(ParseQuantSpec(spec), in.shape());
  Quantize(in.ConstView(), storage.View());
  return storage;
}

TEST(QuantizerTest, CurrentScalingIsTheVerbInBothDirections) {
  const OwnedTensor in = MakeInput(kShape, DType::kBFloat16);
  const Float8CurrentScalingQuantizer quantizer(E5M2::kName,
                                                {.force_pow_2_scales = true, .amax_epsilon = 2.0f});
  const QuantizedTensor out = quantizer.Quantize(in.ConstView());
  EXPECT_EQ(out.NominalDType(), DType::kBFloat16);
  ExpectSameBuffers(
      out.ConstView(),
      ByVerb("fp8_e5m2:amax_epsilon=2,columnwise=1,force_pow_2_scales=1", in).ConstView());
}

TEST(QuantizerTest, Float8BlocksAreTheVerbForEveryOption) {
  const OwnedTensor in = MakeInput({2, 64, 256}, DType::kBFloat16);
  ExpectSameBuffers(Float8BlockQuantizer(E4M3::kName).Quantize(in.ConstView()).ConstView(),
                    ByVerb("fp8_block128x128_e4m3:columnwise=1", in).ConstView());
  const Float8BlockQuantizer runs(
      E5M2::kName, {.block_scaling_dim = 1, .force_pow_2_scales = false, .amax_epsilon = 2.0f});
  ExpectSameBuffers(
      runs.Quantize(in.ConstView()).ConstView(),
      ByVerb("fp8_block1x128_e5m2:amax_epsilon=2,columnwise=1,force_pow_2_scales=0", in)
          .ConstView());
  const OwnedTensor ragged = MakeInput({3, 65}, DType::kBFloat16);
  ExpectSameBuffers(Float8BlockQuantizer(E4M3::kName).Quantize(ragged.ConstView()).ConstView(),
                    ByVerb("fp8_block128x128_e4m3:columnwise=1", ragged).ConstView());
  EXPECT_FALSE(runs.IsQuantizable({128}));
  EXPECT_FALSE(runs.IsQuantizable({128, 130}));
  EXPECT_TRUE(runs.IsQuantizable({2, 64, 128}));
  EXPECT_EQ(
      MessageOf<InvalidArgument>([] { Float8BlockQuantizer("e4m3", {.block_scaling_dim = 3}); }),
      "quantizer: Float8BlockQuantizer's block_scaling_dim must be 1 or 2, got 3");
}

TEST(QuantizerTest, DelayedScalingKeepsASubnormalAmaxUnderAnyFloatSettings) {
  constexpr float kTiny = 0x1p-140f;
  OwnedTensor in(DType::kFloat32, {1});
  std::memcpy(in.data(), &kTiny, sizeof kTiny);
  for (const FloatSettings& settings : AllFloatSettings()) {
    float scale = 1.0f, amax = 0.0f;
    const Float8Quantizer quantizer(&scale, &amax, E4M3::kName);
    settings.Apply();
    quantizer.Quantize(in.ConstView());
    FloatSettings{}.Apply();
    EXPECT_EQ(amax, kTiny);
  }
}

TEST(QuantizerTest, Nvfp4IsTheVerbForEveryOption) {
  const OwnedTensor in = MakeInput(kShape, DType::kBFloat16);
  ExpectSameBuffers(NVFP4Quantizer().Quantize(in.ConstView()).ConstView(),
                    ByVerb("nvfp4:columnwise=1", in).ConstView());
  const NVFP4Quantizer tiles({.with_2d_quantization = true, .scales = ScalePlacement::kSwizzled});
  ExpectSameBuffers(tiles.Quantize(in.ConstView()).ConstView(),
                    ByVerb("nvfp4_2d:columnwise=1,swizzled=1", in).ConstView());
  const NVFP4Quantizer gradient({.with_rht = true,
                                 .with_random_sign_mask = false,
                                 .stochastic_rounding = true,
                                 .random = {7, 9}});
  ExpectSameBuffers(
      gradient.Quantize(in.ConstView()).ConstView(),
      ByVerb("nvfp4:columnwise=1,offset=9,rht=1,rht_sign_mask=0,seed=7,stochastic_rounding=1", in)
          .ConstView());
  const NVFP4Quantizer chooser(
      {.four_over_six = FourOverSix::kMeanSquaredError, .nvfp4_e4m3_max = 256.0f});
  ExpectSameBuffers(chooser.Quantize(in.ConstView()).ConstView(),
                    ByVerb("nvfp4:columnwise=1,e4m3_max=256,four_over_six=mse", in).ConstView());
  EXPECT_FALSE(gradient.IsQuantizable({32, 40}));
  EXPECT_EQ(MessageOf<InvalidArgument>(
                [] { NVFP4Quantizer({.with_rht = true, .row_scaled_nvfp4 = true}); }),
            "quantize: row_scaled must not be given together with rht");
}

TEST(QuantizerTest, Mxfp8IsTheVerbForEveryOption) {
  const OwnedTensor in = MakeInput(kShape);
  ExpectSameBuffers(MXFP8Quantizer(E4M3::kName).Quantize(in.ConstView()).ConstView(),
                    ByVerb("mxfp8_e4m3:columnwise=1", in).ConstView());
  const MXFP8Quantizer tiles(
      E5M2::kName, {.blocks = MXFP8Blocks::kTwoDimensional, .scales = ScalePlacement::kSwizzled});
  ExpectSameBuffers(tiles.Quantize(in.ConstView()).ConstView(),
                    ByVerb("mxfp8_2d_e5m2:columnwise=1,swizzled=1", in).ConstView());
}

TEST(QuantizerTest, DelayedScalingReadsTheScaleOfTheMoment) {
  const OwnedTensor in = MakeInput(kShape);
  float scale = 2.0f, amax = 0.0f;
  const Float8Quantizer quantizer(&scale, &amax, E4M3::kName);
  ExpectSameBuffers(quantizer.Quantize(in.ConstView()).ConstView(),
                    ByVerb("fp8_e4m3:columnwise=1,scale=2", in).ConstView());
  scale = 0.5f;
  ExpectSameBuffers(quantizer.Quantize(in.ConstView()).ConstView(),
                    ByVerb("fp8_e4m3:columnwise=1,scale=0.5", in).ConstView());
}

TEST(QuantizerTest, DelayedScalingKeepsTheLargestAmax) {
  float scale = 1.0f, amax = 0.25f;
  const Float8Quantizer quantizer(&scale, &amax, E4M3::kName);
  const OwnedTensor in = MakeInput(kShape);
  const float met = Amax(in.ConstView());
  ASSERT_GT(met, 0.25f);
  const QuantizedTensor out = quantizer.Quantize(in.ConstView());
  EXPECT_EQ(amax, met);
  amax = 1000.0f;
  quantizer.Copy()->Quantize(in.ConstView());
  EXPECT_EQ(amax, 1000.0f);
  float own = 0.0f;  // the amax in the tensor, of this input alone
  std::memcpy(&own, out.ConstView()[Role::kAmaxRowwise].data, sizeof own);
  EXPECT_EQ(own, met);
}

TEST(QuantizerTest, UsageRulesWhatIsMade) {
  const OwnedTensor in = MakeInput(kShape);
  MXFP8Quantizer quantizer(E4M3::kName);
  quantizer.SetUsage(std::nullopt, false);
  ExpectSameBuffers(quantizer.Quantize(in.ConstView()).ConstView(),
                    ByVerb("mxfp8_e4m3", in).ConstView());
  const std::unique_ptr<Quantizer> copy = quantizer.Copy();
  copy->SetUsage(false, true);
  ExpectSameBuffers(copy->Quantize(in.ConstView()).ConstView(),
                    ByVerb("mxfp8_e4m3:columnwise=1,rowwise=0", in).ConstView());
  EXPECT_TRUE(quantizer.Spec().rowwise);
  copy->SetUsage(false, false);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { (void)copy->Quantize(in.ConstView()); }),
            "quantize: mxfp8_e4m3 needs rowwise, columnwise or both, got neither");
}

TEST(QuantizerTest, UpdateFillsInPlaceSoThatAliasesSeeIt) {
  const OwnedTensor first = MakeInput(kShape, DType::kFloat32, 1);
  const OwnedTensor second = MakeInput(kShape, DType::kFloat32, 2);
  const MXFP8Quantizer quantizer(E4M3::kName);
  QuantizedTensor out = quantizer.Quantize(first.ConstView());
  const QuantizedTensor alias = out.Alias();
  quantizer.UpdateQuantized(second.ConstView(), out);
  ExpectSameBuffers(out.ConstView(), ByVerb("mxfp8_e4m3:columnwise=1", second).ConstView());
  ExpectSameBuffers(alias.ConstView(), out.ConstView());
}

TEST(QuantizerTest, UpdateFollowsTheQuantizersDirectionsAndFormat) {
  const OwnedTensor in = MakeInput(kShape);
  Float8CurrentScalingQuantizer quantizer(E5M2::kName);
  QuantizedTensorStorage out = ByVerb("fp8_e4m3", in);
  const std::byte* const codes = out.ConstView()[Role::kRowwiseData].data;
  quantizer.UpdateQuantized(in.ConstView(), out);
  ExpectSameBuffers(out.ConstView(), ByVerb("fp8_e5m2:columnwise=1", in).ConstView());
  EXPECT_EQ(out.ConstView()[Role::kRowwiseData].data, codes);
  quantizer.SetUsage(false, true);
  quantizer.UpdateQuantized(in.ConstView(), out);
  ExpectSameBuffers(out.ConstView(), ByVerb("fp8_e5m2:columnwise=1,rowwise=0", in).ConstView());
}

TEST(QuantizerTest, UpdateRefillsWhatWasClearedOrDropped) {
  const OwnedTensor in = MakeInput(kShape);
  const MXFP8Quantizer quantizer(E4M3::kName);
  QuantizedTensor cleared = quantizer.MakeEmpty(kShape, DType::kFloat16);
  cleared.Clear();
  quantizer.UpdateQuantized(in.ConstView(), cleared);
  ExpectSameBuffers(cleared.ConstView(), ByVerb("mxfp8_e4m3:columnwise=1", in).ConstView());
  EXPECT_EQ(cleared.NominalDType(), DType::kFloat16);
  cleared.UpdateUsage(false, false);
  quantizer.UpdateQuantized(in.ConstView(), cleared);
  EXPECT_TRUE(cleared.HoldsBuffers());
}

TEST(QuantizerTest, ARefusedUpdateChangesNothing) {
  const OwnedTensor in = MakeInput(kShape), other = MakeInput({32, 32});
  float scale = 1.0f, amax = 0.0f;
  const Float8Quantizer float8(&scale, &amax, E4M3::kName);
  QuantizedTensorStorage out = ByVerb("mxfp8_e4m3", in);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { float8.UpdateQuantized(in.ConstView(), out); }),
            "update_quantized: buffers of mxfp8_e4m3 cannot hold fp8_e4m3");
  const MXFP8Quantizer mxfp8(E4M3::kName);
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { mxfp8.UpdateQuantized(other.ConstView(), out); }),
            "quantize: the output must have shape 32x32 as the input has, got 2x32x64");
  ExpectSameBuffers(out.ConstView(), ByVerb("mxfp8_e4m3", in).ConstView());
  EXPECT_EQ(amax, 0.0f);
  (void)out.PrepareForSaving();
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { mxfp8.UpdateQuantized(in.ConstView(), out); }),
            "update_quantized: the mxfp8_e4m3 tensor of shape 2x32x64 was prepared for saving and "
            "holds no buffers");
}

TEST(QuantizerTest, NoopLeavesEveryByteAndTheAmaxAlone) {
  const OwnedTensor first = MakeInput(kShape, DType::kFloat32, 1);
  const OwnedTensor second = MakeInput(kShape, DType::kFloat32, 2);
  float scale = 1.0f, amax = 0.0f;
  const float noop = 1.0f;
  Float8Quantizer quantizer(&scale, &amax, E4M3::kName);
  QuantizedTensor out = quantizer.Quantize(first.ConstView());
  amax = 0.125f;
  quantizer.SetUsage(true, false);
  quantizer.UpdateQuantized(second.ConstView(), out, {.noop = &noop});
  ExpectSameBuffers(out.ConstView(), ByVerb("fp8_e4m3:columnwise=1,scale=1", first).ConstView());
  QuantizedTensorStorage zeros(quantizer.Spec(), kShape);
  for (const TensorView& buffer : zeros.View().buffers) {
    if (buffer.data != nullptr) {
      std::memset(buffer.data, 0, FlattenShape(buffer.shape).Size() * ItemSize(buffer.dtype));
    }
  }
  ExpectSameBuffers(quantizer.Quantize(second.ConstView(), {.noop = &noop}).ConstView(),
                    zeros.ConstView());
  EXPECT_EQ(amax, 0.125f);
}

TEST(QuantizerTest, Mxfp8TakesWholeBlocksOnly) {
  const MXFP8Quantizer quantizer(E4M3::kName);
  EXPECT_TRUE(quantizer.IsQuantizable({32, 64}));
  EXPECT_TRUE(quantizer.IsQuantizable({4, 8, 32}));
  EXPECT_FALSE(quantizer.IsQuantizable({32, 33}));
  EXPECT_FALSE(quantizer.IsQuantizable({33, 32}));
  EXPECT_FALSE(quantizer.IsQuantizable({32}));
  EXPECT_TRUE(Float8CurrentScalingQuantizer(E4M3::kName).IsQuantizable({33, 1}));
  EXPECT_EQ(
      MessageOf<InvalidArgument>([&] {
        (void)quantizer.MakeEmpty({32, 33});
      }),
      "make_empty: MXFP8Quantizer needs rows and columns in multiples of 32, got shape 32x33");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] {
              (void)quantizer.Quantize(MakeInput({31, 32}).ConstView());
            }),
            "quantize: MXFP8Quantizer needs rows and columns in multiples of 32, got shape 31x32");
}

TEST(QuantizerTest, ConstructorsCheckTheirArguments) {
  float scale = 1.0f;
  EXPECT_EQ(MessageOf<InvalidArgument>([] { MXFP8Quantizer("e3m2"); }),
            "quantizer: MXFP8Tensor needs one of the elements e4m3, e5m2, got 'e3m2'");
  EXPECT_EQ(MessageOf<InvalidArgument>([] { Float8CurrentScalingQuantizer(""); }),
            "quantizer: Float8Tensor needs one of the elements e4m3, e5m2, got ''");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Float8Quantizer(&scale, nullptr, E4M3::kName); }),
            "quantizer: Float8Quantizer needs a scale and an amax, got null");
  EXPECT_EQ(MessageOf<InvalidArgument>(
                [] { Float8CurrentScalingQuantizer(E4M3::kName, {.amax_epsilon = -1.0f}); }),
            "quantize: amax_epsilon must be finite and not negative, got -1");
}

}  // namespace
}  // namespace narrowfloat
