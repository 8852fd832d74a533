// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/derive_columnwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "narrowfloat/ops/testing.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

Floats RandomValues(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(DeriveColumnwiseTest, GivesTheBytesOfQuantizingBothDirections) {
  const Shape shape{32, 3, 160};  // 96 x 160: whole tiles of 16, incomplete tiles of 128
  const Floats values = RandomValues(FlattenShape(shape).Size());
  int derived = 0;
  for (const SchemeInfo& scheme : kSchemes) {
    if (!DerivesColumnwise(scheme)) continue;
    SCOPED_TRACE(scheme.name);
    const QuantSpec spec{.scheme = &scheme, .columnwise = true};
    Quantized both(spec, shape, values), made(spec, shape, values);
    for (auto& bytes : made.memory) std::ranges::fill(bytes, std::byte{0xAB});
    DeriveColumnwise(both.view, made.view, {.threads = 2});
    EXPECT_EQ(made.Bytes(Role::kColumnwiseData), both.Bytes(Role::kColumnwiseData));
    if (scheme.block == kWholeTensor) continue;
    EXPECT_EQ(made.Bytes(Role::kColumnwiseScaleInv), both.Bytes(Role::kColumnwiseScaleInv));
    ++derived;
  }
  EXPECT_GE(derived, 2);
}

TEST(DeriveColumnwiseTest, TheColumnsOfAnEmptyTensorTakeNoTime) {
  const Shape shape{0, std::int64_t{1} << 59};
  for (const SchemeInfo& scheme : kSchemes) {
    if (!DerivesColumnwise(scheme)) continue;
    const QuantSpec spec{.scheme = &scheme, .columnwise = true};
    const Quantized in(spec, shape, {}), out(spec, shape, {});
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
    const Quantized both(spec, {128, 128}, RandomValues(128 * 128));
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { DeriveColumnwise(both.view, both.view); }), message);
  }
}

TEST(DeriveColumnwiseTest, RefusesAnOutputOfAnotherSchemeOrShape) {
  const Quantized in("nvfp4_2d:columnwise=1", {128, 128}, RandomValues(128 * 128));
  const std::pair<const char*, Shape> kCases[] = {
      {"nvfp4_2d:columnwise=1", {128, 64}}, {"fp8_block128x128_e4m3:columnwise=1", {128, 128}}};
  for (const auto& [spec, shape] : kCases) {
    const Quantized out(spec, shape, RandomValues(FlattenShape(shape).Size()));
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { DeriveColumnwise(in.view, out.view); }),
              "derive_columnwise: the output must have the scheme and shape of the input, "
              "nvfp4_2d 128x128, got " +
                  std::string(out.view.spec.scheme->name) + " " + ShapeText(shape));
  }
}

}  // namespace
}  // namespace narrowfloat
