// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/delayed_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "narrowfloat/ops/testing.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"
#include "tests/conformance/float_settings.h"

namespace narrowfloat {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kSmallest = 0x1p-149f;

/// A scale and the history of its amaxes. The newest amax is the first.
struct Column {
  std::vector<float> history;
  float scale;

  void Update(const DelayedScaleRule& rule, std::optional<float> reduced = {}) {
    std::vector<float> scales{scale}, buffer{reduced.value_or(0.0f)};
    const ConstTensorView reduced_view = ViewOf(buffer, {1});
    UpdateDelayedScale(ViewOf(history, {static_cast<std::int64_t>(history.size()), 1}),
                       ViewOf(scales, {1}), rule, reduced ? &reduced_view : nullptr);
    scale = scales[0];
  }
};

constexpr DelayedScaleRule kMax{.fp8_max = 448.0f};
constexpr DelayedScaleRule kMostRecent{.fp8_max = 448.0f, .algorithm = AmaxAlgorithm::kMostRecent};

// Computed by hand from docs/numerics.md, "Delayed scaling over time".
TEST(UpdateDelayedScaleTest, TheKnownStep) {
  Column column{{5, 1, 2, 3}, 1};
  column.Update(kMax);
  EXPECT_EQ(column.history, (Floats{0, 2, 3, 5}));
  EXPECT_EQ(column.scale, 0x1.666666p6f);  // 0x42B33333
}

TEST(UpdateDelayedScaleTest, TheRowThatDropsOutStillCounts) {
  Column column{{1, 7, 2, 3}, 1};
  column.Update(kMax);
  EXPECT_EQ(column.scale, 64.0f);
  EXPECT_EQ(column.history, (Floats{0, 2, 3, 1}));
  column.history[0] = 1;
  column.Update(kMax);
  EXPECT_EQ(column.scale, 0x1.2aaaaap7f);  // 448 / 3: 7 is no longer in the history
}

TEST(UpdateDelayedScaleTest, MostRecentLooksAtTheNewestAlone) {
  Column column{{2, 7, 0, kInfinity}, 1};
  column.Update(kMostRecent);
  EXPECT_EQ(column.scale, 224.0f);
  EXPECT_EQ(column.history, (Floats{0, 0, kInfinity, 2}));
}

TEST(UpdateDelayedScaleTest, ANewestAmaxOfZeroKeepsHistoryAndScale) {
  for (const DelayedScaleRule& rule : {kMax, kMostRecent}) {
    for (const float zero : {0.0f, -0.0f}) {
      Column column{{zero, 1, 2, 3}, 9};
      column.Update(rule);
      EXPECT_EQ(column.history, (Floats{zero, 1, 2, 3}));
      EXPECT_EQ(column.scale, 9.0f);
    }
  }
  Column infinite{{0, 1}, kInfinity};
  infinite.Update(kMax);
  EXPECT_EQ(infinite.scale, 0x1.fffffep127f) << "an infinite scale never stays";
}

TEST(UpdateDelayedScaleTest, NanIsNotZeroAndNotAMagnitude) {
  Column column{{kNan, 1, 2, 4}, 9};
  column.Update(kMax);
  EXPECT_EQ(column.scale, 112.0f);
  EXPECT_TRUE(std::isnan(column.history[3]));
  EXPECT_EQ((Floats{column.history.begin(), column.history.begin() + 3}), (Floats{0, 2, 4}));
  Column recent{{kNan, 1}, 9};
  recent.Update(kMostRecent);
  EXPECT_EQ(recent.scale, 9.0f);
}

TEST(UpdateDelayedScaleTest, AnInfinityKeepsTheScaleUntilItLeavesTheWindow) {
  Column column{{kInfinity, 1, 2}, 9};
  const float kept[] = {9, 9, 9, 448};
  for (const float expected : kept) {
    column.Update(kMax);
    EXPECT_EQ(column.scale, expected);
    column.history[0] = 1;
  }
}

TEST(UpdateDelayedScaleTest, OneRowIsTheNewestAmaxAlone) {
  Column column{{7}, 1};
  column.Update(kMax);
  EXPECT_EQ(column.history, Floats{0});
  EXPECT_EQ(column.scale, 64.0f);
}

TEST(UpdateDelayedScaleTest, ANonzeroReducedAmaxStandsInForRowZero) {
  Column column{{2, 1}, 1};
  column.Update(kMax, 7.0f);
  EXPECT_EQ(column.history, (Floats{0, 7}));
  EXPECT_EQ(column.scale, 64.0f);
  Column local{{2, 1}, 1};
  local.Update(kMax, 0.0f);
  EXPECT_EQ(local.history, (Floats{0, 2}));
  EXPECT_EQ(local.scale, 224.0f);
  Column nan{{2, 1}, 5};
  nan.Update(kMostRecent, kNan);
  EXPECT_EQ(nan.scale, 5.0f);
}

TEST(UpdateDelayedScaleTest, MarginScalesThePowerOfTwo) {
  // 448 * powf(2, -0.5) = 448 * 0x3F3504F3 = 0x439E6455 in fp32.
  const std::pair<float, float> known[] = {
      {1, 224.0f},        {-2, 1792.0f}, {0.5f, 0x1.3cc8aap8f},
      {140, 0x1.cp-132f}, {300, 0.0f},   {-300, 0x1.fffffep127f},
  };
  for (const auto& [margin, scale] : known) {
    Column column{{1}, 9};
    column.Update({.fp8_max = 448.0f, .margin = margin});
    EXPECT_EQ(column.scale, scale) << margin;
  }
}

TEST(UpdateDelayedScaleTest, ColumnsAreAloneAndNeedNoAlignment) {
  // Columns: the known step, a newest amax of zero, and a subnormal one, which is not zero.
  const Floats history{5, 0, kSmallest, 1, 1, 0, 2, 8, 0, 3, 3, 0};
  const Floats scales{1, 9, 9};
  std::vector<std::byte> memory((history.size() + scales.size()) * 4 + 1);
  std::memcpy(memory.data() + 1, history.data(), history.size() * 4);
  std::memcpy(memory.data() + 1 + history.size() * 4, scales.data(), scales.size() * 4);
  const TensorView history_view{memory.data() + 1, DType::kFloat32, {4, 3}, {}, {}};
  const TensorView scale_view{memory.data() + 1 + history.size() * 4, DType::kFloat32, {3}, {}, {}};
  UpdateDelayedScale(history_view, scale_view, kMax);
  Floats got(history.size() + scales.size());
  std::memcpy(got.data(), memory.data() + 1, got.size() * 4);
  EXPECT_EQ(got, (Floats{0, 0, 0, 2, 1, 0, 3, 8, 0, 5, 3, kSmallest,  //
                         0x1.666666p6f, 9, 0x1.fffffep127f}));
}

TEST(UpdateDelayedScaleTest, NoScalesAreFine) {
  Floats none;
  UpdateDelayedScale(ViewOf(none, {4, 0}), ViewOf(none, {0}), kMax);
}

TEST(UpdateDelayedScaleTest, TheCallersSettingsDoNotMatter) {
  for (const FloatSettings& settings : AllFloatSettings()) {
    Column thirds{{3, 1}, 1}, subnormal{{kSmallest, 1}, 9}, tiny{{1}, 9};
    settings.Apply();
    const auto before = FloatControl();
    thirds.Update(kMax);
    subnormal.Update(kMostRecent);
    tiny.Update({.fp8_max = 448.0f, .margin = 140.0f});
    const float smallest = ScaledMax("test", kSmallest, 0.0f);
    const auto after = FloatControl();
    FloatSettings{}.Apply();
    EXPECT_EQ(smallest, kSmallest);
    EXPECT_EQ(thirds.scale, 0x1.2aaaaap7f);
    EXPECT_EQ(subnormal.scale, 0x1.fffffep127f);
    EXPECT_EQ(tiny.scale, 0x1.cp-132f);
    EXPECT_EQ(after, before);
  }
}

TEST(UpdateDelayedScaleTest, WrongArgumentsAreNamedAndNothingIsWritten) {
  Floats history{1, 2, 3, 4, 5, 6}, scale{1, 2, 3}, reduced{1, 2, 3};
  const Floats history_before = history, scale_before = scale;
  const TensorView good_history = ViewOf(history, {2, 3}), good_scale = ViewOf(scale, {3});
  TensorView bytes = ViewOf(history, {2, 3}), strided = good_history;
  bytes.dtype = DType::kUInt8;
  strided.strides = {4, 8};
  const ConstTensorView short_reduced = ViewOf(reduced, {2}), overlapping = good_scale;
  const ConstTensorView no_data{nullptr, DType::kFloat32, {3}, {}, {}};
  const std::string verb = "update_delayed_scale: ";
  const auto message = [&](const TensorView& h, const TensorView& s, const DelayedScaleRule& rule,
                           const ConstTensorView* r = nullptr) {
    return MessageOf<InvalidArgument>([&] { UpdateDelayedScale(h, s, rule, r); });
  };
  EXPECT_EQ(message(ViewOf(history, {6}), good_scale, kMax),
            verb + "amax_history must have shape (rows, scales) with at least one row, got 6");
  EXPECT_EQ(message(ViewOf(history, {0, 3}), good_scale, kMax),
            verb + "amax_history must have shape (rows, scales) with at least one row, got 0x3");
  EXPECT_EQ(message(bytes, good_scale, kMax),
            verb + "amax_history must be float32 of shape 2x3, got uint8 of shape 2x3");
  EXPECT_EQ(message(strided, good_scale, kMax), verb + "amax_history must be C-contiguous");
  EXPECT_EQ(message(good_history, ViewOf(scale, {1, 3}), kMax),
            verb + "scale must be float32 of shape 3, got float32 of shape 1x3");
  EXPECT_EQ(message(good_history, ViewOf(history, {3}), kMax),
            verb + "amax_history must not overlap scale");
  EXPECT_EQ(message(good_history, good_scale, kMax, &short_reduced),
            verb + "reduced_amax must be float32 of shape 3, got float32 of shape 2");
  EXPECT_EQ(message(good_history, good_scale, kMax, &overlapping),
            verb + "scale must not overlap reduced_amax");
  EXPECT_EQ(message(good_history, good_scale, kMax, &no_data),
            verb + "reduced_amax must have data for its elements, got a null pointer");
  for (const auto& [fp8_max, text] :
       {std::pair{0.0f, "0"}, {-448.0f, "-448"}, {kNan, "nan"}, {kInfinity, "inf"}}) {
    EXPECT_EQ(message(good_history, good_scale, {.fp8_max = fp8_max}),
              verb + "fp8_max must be positive and finite, got " + text);
  }
  EXPECT_EQ(message(good_history, good_scale, {.fp8_max = 448.0f, .margin = kInfinity}),
            verb + "margin must be finite, got inf");
  EXPECT_EQ(MessageOf([] { FindAmaxAlgorithm("mean"); }),
            verb + "algo must be 'max' or 'most_recent', got 'mean'");
  EXPECT_EQ(history, history_before);
  EXPECT_EQ(scale, scale_before);
}

}  // namespace
}  // namespace narrowfloat
