// SPDX-License-Identifier: Apache-2.0
// Recorded steps of delayed scaling: group dsu. TransformerEngine's variants disagree about a step
// whose newest amax is 0; its bulk kernel, the one that runs after the reduction, is followed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/golden_case.h"

namespace narrowfloat::conformance {
namespace {

using Floats = std::vector<float>;

Floats FloatsOf(const GoldenTensor& tensor) {
  Floats items;
  for (std::size_t i = 0; i < tensor.Items(); ++i) items.push_back(tensor.Float(i));
  return items;
}

TensorView ViewOf(Floats& items, Shape shape) {
  return {reinterpret_cast<std::byte*>(items.data()), DType::kFloat32, std::move(shape), {}, {}};
}

void ExpectStep(const GoldenTensor& expected, std::size_t step, const Floats& got,
                const std::string& context) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::uint32_t bits = expected.Bits(step * got.size() + i);
    ASSERT_TRUE(SameItem("fp32", bits, std::bit_cast<std::uint32_t>(got[i])))
        << fmt::format("{}: step {}, item {}, expected {:08x}, got {:08x}", context, step, i, bits,
                       std::bit_cast<std::uint32_t>(got[i]));
  }
}

/// Returns the largest values as OCP OFP8 1.0 lists them.
float Fp8Max(const GoldenCase& golden) {
  return golden.params.at("q_dtype") == "e4m3" ? 448.0f : 57344.0f;
}

DelayedScaleRule RuleOf(const GoldenCase& golden) {
  return {.fp8_max = Fp8Max(golden),
          .margin = golden.params.at("margin").get<float>(),
          .algorithm = FindAmaxAlgorithm(golden.params.at("amax_compute_algo").get<std::string>())};
}

/// Runs all steps of a case as `reference` did. The recorder of the reduced variant had half of
/// each amax in row 0 and the amax itself in the reduction's buffer.
void CheckUpdates(const GoldenCase& golden, const std::string& reference, bool reduced) {
  const auto scales = golden.params.at("num_scales").get<std::size_t>();
  const auto rows = golden.params.at("history_length").get<std::int64_t>();
  const auto columns = static_cast<std::int64_t>(scales);
  const GoldenTensor& amaxes = golden.At("amax");
  Floats history = FloatsOf(golden.At("initial_history"));
  Floats scale = FloatsOf(golden.At("initial_scale"));
  for (std::size_t step = 0; step < golden.params.at("steps").get<std::size_t>(); ++step) {
    Floats newest;
    for (std::size_t i = 0; i < scales; ++i) newest.push_back(amaxes.Float(step * scales + i));
    for (std::size_t i = 0; i < scales; ++i) history[i] = reduced ? newest[i] / 2 : newest[i];
    const ConstTensorView newest_view = ViewOf(newest, {columns});
    UpdateDelayedScale(ViewOf(history, {rows, columns}), ViewOf(scale, {columns}), RuleOf(golden),
                       reduced ? &newest_view : nullptr);
    const std::string context = golden.name + " as " + reference;
    ExpectStep(golden.From(reference, "history"), step, history, context + ", history");
    ExpectStep(golden.From(reference, "scale"), step, scale, context + ", scale");
  }
}

/// Quantizes with the scale of the step before, files the amax, updates the scale; and again.
void CheckTraining(const GoldenCase& golden) {
  const Shape shape = golden.params.at("shape").get<Shape>();
  const auto rows = golden.params.at("history_length").get<std::int64_t>();
  const FloatTensor inputs = GoldenInput(golden);
  Floats history(static_cast<std::size_t>(rows), 0.0f), scale{1.0f};
  const auto steps = golden.params.at("steps").get<std::size_t>();
  for (std::size_t step = 0; step < steps; ++step) {
    FloatTensor in(inputs.dtype(), shape);
    for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, inputs.Bits(step * in.size() + i));
    ExpectStep(golden.At("scale_used"), step, scale, golden.name + ", scale");
    QuantSpec spec = GoldenSpec(golden);
    spec.scale = scale[0];
    QuantizedBuffers quantized(spec, shape);
    Quantize(in.ConstView(), quantized.view);
    const GoldenTensor& codes = golden.At("data");
    ASSERT_EQ(std::memcmp(codes.bytes.data() + step * in.size(), quantized.Data(Role::kRowwiseData),
                          in.size()),
              0)
        << golden.name << ", codes of step " << step;
    std::memcpy(&history[0], quantized.Data(Role::kAmaxRowwise), sizeof history[0]);
    ExpectStep(golden.At("amax"), step, {history[0]}, golden.name + ", amax");
    UpdateDelayedScale(ViewOf(history, {rows, 1}), ViewOf(scale, {1}), {.fp8_max = Fp8Max(golden)});
    ExpectStep(golden.At("history_after"), step, history, golden.name + ", history");
  }
  ExpectStep(golden.At("scale_final"), 0, scale, golden.name + ", last scale");
}

class GoldenDelayedScaleTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenDelayedScaleTest, EveryStepIsTheRecordedOne) {
  const GoldenCase golden = LoadGolden(GetParam());
  if (golden.params.at("mode") == "fp8_delayed_scaling_steps") return CheckTraining(golden);
  const DelayedScaleRule rule = RuleOf(golden);
  ASSERT_EQ(golden.At("scaled_max").Float(0),
            std::ldexp(rule.fp8_max, -static_cast<int>(rule.margin)));
  CheckUpdates(golden, "port.kernel_bulk", false);
  CheckUpdates(golden, "port.kernel_bulk_reduced", true);
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Recorded, GoldenDelayedScaleTest, testing::ValuesIn(GoldenFiles("dsu")),
                         NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
