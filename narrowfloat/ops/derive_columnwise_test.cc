// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/derive_columnwise.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

/// The buffers of a plan, and their memory.
struct Buffers {
  QuantizedView view;
  std::vector<std::vector<std::byte>> memory;

  Buffers(const QuantSpec& spec, const Shape& shape, std::byte fill) : view{spec, shape, {}} {
    memory.reserve(kRoleCount);
    for (const BufferPlan& buffer : PlanQuantize(spec, shape)) {
      if (buffer.storage != buffer.role) {
        view[buffer.role] = view[buffer.storage];
        continue;
      }
      memory.emplace_back(BufferBytes(buffer), fill);
      view[buffer.role] = {memory.back().data(), buffer.dtype, buffer.shape, {}, Device::kCpu};
    }
  }
};

std::vector<float> RandomValues(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

void ExpectSameBytes(const TensorView& actual, const TensorView& expected, const char* what) {
  ASSERT_EQ(actual.shape, expected.shape) << what;
  const std::size_t bytes = FlattenShape(actual.shape).Size() * ItemSize(actual.dtype);
  EXPECT_EQ(std::memcmp(actual.data, expected.data, bytes), 0) << what;
}

TEST(DeriveColumnwiseTest, GivesTheBytesOfQuantizingBothDirections) {
  const Shape shape{32, 3, 160};  // 96 x 160: whole tiles of 16, incomplete tiles of 128
  std::vector<float> values = RandomValues(FlattenShape(shape).Size());
  int derived = 0;
  for (const SchemeInfo& scheme : kSchemes) {
    if (!DerivesColumnwise(scheme)) continue;
    SCOPED_TRACE(scheme.name);
    const QuantSpec spec{.scheme = &scheme, .columnwise = true};
    Buffers both(spec, shape, std::byte{0});
    Quantize({reinterpret_cast<std::byte*>(values.data()), DType::kFloat32, shape, {}}, both.view);
    Buffers made(spec, shape, std::byte{0xAB});
    DeriveColumnwise(both.view, made.view, {.threads = 2});
    ExpectSameBytes(made.view[Role::kColumnwiseData], both.view[Role::kColumnwiseData], "codes");
    if (scheme.block == kWholeTensor) continue;
    ExpectSameBytes(made.view[Role::kColumnwiseScaleInv], both.view[Role::kColumnwiseScaleInv],
                    "scale_inv");
    ++derived;
  }
  EXPECT_GE(derived, 2);
}

TEST(DeriveColumnwiseTest, TheColumnsOfAnEmptyTensorTakeNoTime) {
  const Shape shape{0, std::int64_t{1} << 59};
  for (const SchemeInfo& scheme : kSchemes) {
    if (!DerivesColumnwise(scheme)) continue;
    const QuantSpec spec{.scheme = &scheme, .columnwise = true};
    const Buffers in(spec, shape, std::byte{0}), out(spec, shape, std::byte{0});
    EXPECT_NO_THROW(DeriveColumnwise(in.view, out.view)) << scheme.name;
  }
}

TEST(DeriveColumnwiseTest, RefusesWhatIsQuantizedByItselfAndSwizzledScales) {
  const std::pair<const char*, const char*> kCases[] = {
      {"mxfp8_e4m3:columnwise=1",
       "derive_columnwise: the scheme must have one scale, or square tiles and transposed "
       "columnwise codes, got mxfp8_e4m3"},
      {"nvfp4_2d:columnwise=1,swizzled=1",
       "derive_columnwise: scales must be compact, got swizzled ones"}};
  for (const auto& [spec, message] : kCases) {
    Buffers both(ParseQuantSpec(spec), {128, 128}, std::byte{0});
    try {
      DeriveColumnwise(both.view, both.view);
      FAIL() << spec;
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), message);
    }
  }
}

TEST(DeriveColumnwiseTest, RefusesAnOutputOfAnotherSchemeOrShape) {
  const Buffers in(ParseQuantSpec("nvfp4_2d:columnwise=1"), {128, 128}, std::byte{0});
  const std::pair<const char*, Shape> kCases[] = {
      {"nvfp4_2d:columnwise=1", {128, 64}}, {"fp8_block128x128_e4m3:columnwise=1", {128, 128}}};
  for (const auto& [spec, shape] : kCases) {
    const Buffers out(ParseQuantSpec(spec), shape, std::byte{0});
    try {
      DeriveColumnwise(in.view, out.view);
      FAIL() << spec;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                "derive_columnwise: the output must have the scheme and shape of the input, "
                "nvfp4_2d 128x128, got " +
                    std::string(out.view.spec.scheme->name) + " " + ShapeText(shape));
    }
  }
}

}  // namespace
}  // namespace narrowfloat
