// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/decode_weight.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "narrowfloat/io/block_fp8.h"
#include "narrowfloat/io/own_form.h"
#include "narrowfloat/io/weight_check.h"
#include "narrowfloat/io/write_convention.h"
#include "tests/conformance/float_settings.h"

namespace narrowfloat::io {
namespace {

/// An NVFP4 weight of 16 values. All values are 1 times the scale of the whole tensor.
struct Nvfp4Weight {
  std::vector<std::byte> codes = std::vector<std::byte>(8, std::byte{0x22});
  std::vector<std::byte> scales = {std::byte{0x38}};
  ForeignWeight form{.codes = FileDType::kU8,
                     .scale = FileDType::kF8E4M3,
                     .rows = 1,
                     .cols = 16,
                     .block = {1, 16},
                     .shape = {1, 16}};

  explicit Nvfp4Weight(GlobalScale use) { form.global = use; }

  std::array<float, 16> Values(float whole) const {
    std::array<float, 16> values{};
    DecodeWeight(form, {codes, scales, std::as_bytes(std::span(&whole, 1))}, DType::kFloat32,
                 std::as_writable_bytes(std::span(values)), 1);
    return values;
  }
  CanonicalWeight Canonical(float whole) const {
    return {.form = form, .codes = codes, .scales = scales, .globals = {whole}};
  }
};

/// Returns the results of `compute` under all settings of the calling thread.
template <class Compute>
auto UnderAnySettings(const Compute& compute) {
  std::vector<decltype(compute())> results;
  for (const FloatSettings& settings : AllFloatSettings()) {
    settings.Apply();
    results.push_back(compute());
    FloatSettings{}.Apply();
  }
  return results;
}

TEST(DecodeWeightTest, KeepsSubnormalScalesUnderAnyFloatSettings) {
  struct Case {
    GlobalScale use;
    float whole, value;
  };
  for (const Case& each : {Case{GlobalScale::kMultiplies, 0x1p-127f, 0x1p-127f},
                           Case{GlobalScale::kDivides, 0x1p127f, 0x1p-127f},
                           Case{GlobalScale::kDivides, 3.0f, 0x1.555556p-2f}}) {
    const Nvfp4Weight weight(each.use);
    for (const auto& values : UnderAnySettings([&] { return weight.Values(each.whole); }))
      EXPECT_EQ(values.front(), each.value);
  }
}

TEST(DecodeWeightTest, ASubnormalScaleIsNotZeroUnderAnyFloatSettings) {
  const Nvfp4Weight weight(GlobalScale::kMultiplies);
  const CanonicalWeight canonical = weight.Canonical(0x1p-130f);
  for (const auto zeros : UnderAnySettings([&] { return CheckWeight(canonical).zero_scales; }))
    EXPECT_EQ(zeros, 0u);
}

TEST(DecodeWeightTest, ComputesTheScaleOfATensorUnderAnyFloatSettings) {
  constexpr float kAmax = 0x1.8p-116f, kScale = kAmax * (1.0f / (6.0f * 448.0f));
  for (const float scale : UnderAnySettings([] { return GlobalOfAmax(kAmax, 448.0f); }))
    EXPECT_EQ(scale, kScale);
}

TEST(DecodeWeightTest, WritesReciprocalScalesUnderAnyFloatSettings) {
  const ConventionRow& convention = *FindConvention("compressed-tensors");
  const Nvfp4Weight weight(GlobalScale::kMultiplies);
  const CanonicalWeight canonical = weight.Canonical(0x1p127f);
  const auto formats = FindWritten(convention, canonical.form);
  ASSERT_FALSE(formats.empty());
  const auto written = [&] { return WrittenScales(canonical, convention, *formats.front())[1]; };
  for (const std::vector<std::byte>& bytes : UnderAnySettings(written))
    EXPECT_EQ(ScaleValue(FileDType::kF32, bytes, 0), 0x1p-127f);
}

TEST(DecodeWeightTest, StoresASubnormalAmaxUnderAnyFloatSettings) {
  const Nvfp4Weight weight(GlobalScale::kMultiplies);
  const float whole = GlobalOfAmax(0x1p-127f, 448.0f);
  const CanonicalWeight canonical = weight.Canonical(whole);
  const StoredTensor tensor =
      AsStored({"a.weight", *OwnSpec(canonical.form), weight.form.shape, DType::kFloat32});
  const auto amax = [&] {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::span<std::byte>> out;
    for (const BufferPlan& buffer : tensor.plan) memory.emplace_back(BufferBytes(buffer));
    out.assign(memory.begin(), memory.end());
    StoreOwnBuffers(tensor, canonical, out);
    for (std::size_t i = 0; i < tensor.plan.size(); ++i) {
      if (tensor.plan[i].role == Role::kAmaxRowwise)
        return GlobalOfAmax(ScaleValue(FileDType::kF32, memory[i], 0), 448.0f);
    }
    return -1.0f;
  };
  for (const float stored : UnderAnySettings(amax)) EXPECT_EQ(stored, whole);
}

TEST(DecodeWeightTest, ASubnormalScaleBecomesAPowerOfTwoUnderAnyFloatSettings) {
  const std::vector<std::byte> codes(1, std::byte{0x38});
  const float scale = 0x1p-127f;
  const auto bytes = std::as_bytes(std::span(&scale, 1));
  const CanonicalWeight weight{.form = {.codes = FileDType::kF8E4M3,
                                        .scale = FileDType::kF32,
                                        .rows = 1,
                                        .cols = 1,
                                        .block = {128, 128},
                                        .shape = {1, 1}},
                               .codes = codes,
                               .scales = {bytes.begin(), bytes.end()}};
  const auto convert = [&] {
    std::vector<std::byte> own;
    Loss loss;
    return ToPowerOfTwoScales(weight, own, 1, loss).scales;
  };
  for (const std::vector<std::byte>& scales : UnderAnySettings(convert))
    EXPECT_EQ(scales, std::vector<std::byte>{std::byte{0}});
}

}  // namespace
}  // namespace narrowfloat::io
