// SPDX-License-Identifier: Apache-2.0
// Recorded tables: group ct (casts, scales from amax), group sw (swizzled scales) and group rht
// (the Hadamard transform alone).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/numerics/scale.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "tests/conformance/golden_case.h"
#include "tests/conformance/reference_codec.h"

namespace narrowfloat::conformance {
namespace {

std::uint32_t EncodeAs(std::string_view format, float x) {
  if (format == "e4m3") return Encode<E4M3>(x);
  if (format == "e5m2") return Encode<E5M2>(x);
  return format == "e2m1" ? Encode<E2M1>(x) : EncodeE8M0Up(x);
}

float DecodeAs(std::string_view format, std::uint32_t code) {
  if (format == "e4m3") return Decode<E4M3>(code);
  if (format == "e5m2") return Decode<E5M2>(code);
  return format == "e2m1" ? Decode<E2M1>(code) : DecodeE8M0(code);
}

void ExpectItem(const GoldenCase& golden, const std::string& tensor, std::size_t item,
                std::uint32_t got, std::uint32_t input) {
  const GoldenTensor& expected = golden.At(tensor);
  EXPECT_TRUE(SameItem(expected.dtype, expected.Bits(item), got))
      << fmt::format("{} {}[{}], input {:08x}: expected {:08x}, got {:08x}", golden.name, tensor,
                     item, input, expected.Bits(item), got);
}

std::uint32_t BitsOf(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

/// Runs the vector codec of every backend over the recorded inputs, by per-tensor scaling by 1.
void ExpectEncodedByBackends(const GoldenCase& golden, const std::string& format) {
  const FloatTensor in = GoldenInput(golden);
  const QuantSpec spec{.scheme = &FindScheme("fp8_" + format), .scale = 1.0f};
  for (const KernelTable* backend : AvailableKernels()) {
    QuantizedBuffers out(spec, in.shape());
    Quantize(in.ConstView(), out.view, {.kernels = backend});
    for (std::size_t i = 0; i < in.size(); ++i) {
      SCOPED_TRACE(backend->name);
      ExpectItem(golden, "code", i, std::to_integer<std::uint32_t>(out.Data(Role::kRowwiseData)[i]),
                 in.Bits(i));
    }
  }
}

void CheckCasts(const GoldenCase& golden) {
  const std::string format = golden.params.at("q_dtype");
  const GoldenTensor& x = golden.At("x");
  const GoldenTensor& code = golden.At("code");
  const bool encodes = golden.params.at("mode") == "encode";
  for (std::size_t i = 0; i < x.Items(); ++i) {
    if (encodes) {
      ExpectItem(golden, "code", i, EncodeAs(format, x.Float(i)), x.Bits(i));
    } else {
      ExpectItem(golden, "x", i, BitsOf(DecodeAs(format, code.Bits(i))), code.Bits(i));
    }
    if (golden.Has("reciprocal"))
      ExpectItem(golden, "reciprocal", i, BitsOf(DecodeE8M0Reciprocal(code.Bits(i))), code.Bits(i));
  }
  if (encodes && (format == "e4m3" || format == "e5m2")) ExpectEncodedByBackends(golden, format);
}

/// Checks scales with one element per block, so that each recorded amax is a block's.
void CheckMxScales(const GoldenCase& golden) {
  const GoldenTensor& amax = golden.At("amax");
  FloatTensor in(DType::kFloat32, {amax.shape.at(0), 1});
  for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, amax.Bits(i));
  const QuantSpec spec{.scheme =
                           &FindScheme("mxfp8_" + golden.params.at("q_dtype").get<std::string>())};
  for (const KernelTable* backend : AvailableKernels()) {
    QuantizedBuffers out(spec, in.shape());
    Quantize(in.ConstView(), out.view, {.kernels = backend});
    const std::size_t row_bytes = FlattenShape(out.view[Role::kRowwiseScaleInv].shape).cols;
    for (std::size_t i = 0; i < in.size(); ++i) {
      // A NaN amax cannot come from data, whose NaNs the amax skips.
      if (!SameItem("fp32", in.Bits(i), 0x7FC00000u)) {
        ExpectItem(golden, "code", i,
                   std::to_integer<std::uint32_t>(out.Data(Role::kRowwiseScaleInv)[i * row_bytes]),
                   in.Bits(i));
      }
    }
  }
}

void CheckTensorScales(const GoldenCase& golden) {
  const GoldenTensor& amax = golden.At("amax");
  const std::string format = golden.params.at("q_dtype");
  QuantSpec spec = GoldenSpec(golden);
  const ScaleRule rule{.amax_epsilon = spec.amax_epsilon,
                       .force_pow_2_scales = spec.ForcesPow2Scales()};
  const float max = format == "e4m3" ? kMaxValue<E4M3> : kMaxValue<E5M2>;
  const FloatTensor in(DType::kFloat32, {0, 1});
  for (std::size_t i = 0; i < amax.Items(); ++i) {
    const float scale = ScaleFromAmax(amax.Float(i), max, rule);
    ExpectItem(golden, "scale", i, BitsOf(scale), amax.Bits(i));
    ExpectItem(golden, "scale_inv", i, BitsOf(1.0f / scale), amax.Bits(i));
    spec.amax = amax.Float(i);
    QuantizedBuffers out(spec, in.shape());
    Quantize(in.ConstView(), out.view);
    float buffers[2];
    std::memcpy(&buffers[0], out.Data(Role::kScale), sizeof(float));
    std::memcpy(&buffers[1], out.Data(Role::kRowwiseScaleInv), sizeof(float));
    ExpectItem(golden, "scale", i, BitsOf(buffers[0]), amax.Bits(i));
    ExpectItem(golden, "scale_inv", i, BitsOf(buffers[1]), amax.Bits(i));
  }
}

void CheckNvfp4Scales(const GoldenCase& golden) {
  using S = Nvfp4Scheme;
  const GoldenTensor& block_amax = golden.At("block_amax");
  for (std::size_t i = 0; i < block_amax.Items(); ++i) {
    const auto state = S::Prepare(golden.At("global_amax").Float(i), {});
    const BlockScale scale = S::ScaleBlock(block_amax.Float(i), state);
    ExpectItem(golden, "global_encode_scale", i, BitsOf(state.encode), block_amax.Bits(i));
    ExpectItem(golden, "code", i, scale.scale_inv, block_amax.Bits(i));
    ExpectItem(golden, "block_encode_scale", i, BitsOf(scale.scale), block_amax.Bits(i));
  }
}

class GoldenTableTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenTableTest, GivesTheRecordedItems) {
  const GoldenCase golden = LoadGolden(GetParam());
  const std::string mode = golden.params.at("mode");
  if (mode == "encode" || mode == "decode") return CheckCasts(golden);
  if (mode == "mxfp8_scale_from_amax") return CheckMxScales(golden);
  if (mode == "nvfp4_block_scale") return CheckNvfp4Scales(golden);
  ASSERT_EQ(mode, "fp8_scale_from_amax") << golden.name;
  CheckTensorScales(golden);
}

class GoldenSwizzleTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenSwizzleTest, PermutesAsRecordedAndBack) {
  const GoldenCase golden = LoadGolden(GetParam());
  const bool rowwise = golden.params.at("direction") == "rowwise";
  const Shape stored = golden.params.at("padded_shape").get<Shape>();
  const auto block = static_cast<std::int64_t>(kMxBlock);
  const Shape shape =
      rowwise ? Shape{stored[0], stored[1] * block} : Shape{stored[0] * block, stored[1]};
  const Role role = rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
  QuantSpec spec{.scheme = &FindScheme("mxfp8_e4m3"), .rowwise = rowwise, .columnwise = !rowwise};
  QuantizedBuffers compact(spec, shape), back(spec, shape);
  spec.swizzled = true;
  QuantizedBuffers swizzled(spec, shape);
  const auto& expected = golden.At("scale_inv_swizzled").bytes;
  ASSERT_EQ(compact.Bytes(role), expected.size());
  std::memcpy(compact.Data(role), golden.At("scale_inv").bytes.data(), expected.size());

  Swizzle(compact.view, swizzled.view);
  EXPECT_EQ(std::memcmp(swizzled.Data(role), expected.data(), expected.size()), 0) << golden.name;
  Unswizzle(swizzled.view, back.view);
  EXPECT_EQ(Difference(compact, back), "") << golden.name;
}

class GoldenHadamardTest : public testing::TestWithParam<std::filesystem::path> {};

// The exact sums are recorded in binary64, which holds them; one rounding makes the items.
TEST_P(GoldenHadamardTest, RoundsTheExactSumOnce) {
  const GoldenCase golden = LoadGolden(GetParam());
  const FloatTensor x = GoldenInput(golden);
  const auto rows = static_cast<std::size_t>(x.shape()[0]);
  const auto cols = static_cast<std::size_t>(x.shape()[1]);
  // Recorded along rows; the verb goes along columns.
  FloatTensor in(x.dtype(), {x.shape()[1], x.shape()[0]});
  for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, x.Bits(i % rows * cols + i / rows));
  for (const KernelTable* backend : AvailableKernels()) {
    FloatTensor out(in.dtype(), in.shape());
    HadamardTransform(in.ConstView(), out.View(),
                      golden.params.at("sign_mask").get<std::uint32_t>(),
                      {.threads = 2, .kernels = backend});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double exact = golden.At("exact.fp64").Double(i % rows * cols + i / rows);
      const std::uint32_t expected =
          in.dtype() == DType::kFloat32
              ? BitsOf(static_cast<float>(exact))
              : ReferenceCodecOf(DTypeName(in.dtype())).Encode(exact, PastLargest::kIsInfinite);
      EXPECT_EQ(out.Bits(i), expected) << golden.name << " on " << backend->name << ", " << i;
    }
    EXPECT_TRUE(out.GuardsAreWhole());
  }
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Casts, GoldenTableTest, testing::ValuesIn(GoldenFiles("ct")), NameOf);
INSTANTIATE_TEST_SUITE_P(Transforms, GoldenHadamardTest, testing::ValuesIn(GoldenFiles("rht")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Scales, GoldenSwizzleTest, testing::ValuesIn(GoldenFiles("sw")), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
