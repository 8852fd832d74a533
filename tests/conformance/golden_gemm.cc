// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/golden_gemm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/conformance/reference_codec.h"

namespace narrowfloat::conformance {
namespace {

std::string Key(std::string_view prefix, std::string_view side) {
  return fmt::format("{}{}", prefix, side);
}

std::vector<float> Decoded(const GoldenTensor& codes) {
  const bool packed = codes.dtype == "e2m1x2";
  const ReferenceCodec& codec = ReferenceCodecOf(packed ? "e2m1" : codes.dtype);
  std::vector<float> values;
  for (std::size_t i = 0; i < codes.Items(); ++i) {
    const std::uint32_t bits = codes.Bits(i);
    values.push_back(static_cast<float>(codec.Value(packed ? bits % 16 : bits)));
    if (packed) values.push_back(static_cast<float>(codec.Value(bits / 16)));
  }
  return values;
}

std::vector<float> DecodedScales(const GoldenTensor& scales) {
  std::vector<float> values;
  for (std::size_t i = 0; i < scales.Items(); ++i) {
    if (scales.dtype == "fp32") {
      values.push_back(scales.Float(i));
    } else if (scales.dtype == "e8m0") {
      values.push_back(std::ldexp(1.0f, static_cast<int>(scales.Bits(i)) - 127));
    } else {
      values.push_back(static_cast<float>(ReferenceCodecOf(scales.dtype).Value(scales.Bits(i))));
    }
  }
  return values;
}

std::vector<float> Floats(const GoldenCase& golden, const std::string& name) {
  std::vector<float> values;
  if (!golden.Has(name)) return values;
  for (std::size_t i = 0; i < golden.At(name).Items(); ++i)
    values.push_back(golden.At(name).Float(i));
  return values;
}

std::size_t SlabOf(const GoldenCase& golden, std::size_t length) {
  const std::string mode = golden.params.at("mode");
  if (mode == "mxfp8_gemm") return 32;
  if (mode == "fp8_blockwise_gemm") return 128;
  return mode == "nvfp4_gemm" ? 16 : length;
}

/// Returns half the distance of adjacent numbers, relative to the power of two below them.
double UnitRoundoff(DType dtype) {
  constexpr int kDigits[] = {24, 11, 8};
  return std::ldexp(1.0, -kDigits[static_cast<std::size_t>(dtype)]);
}

std::size_t LinesOf(const GoldenCase& golden, std::string_view side) {
  return golden.params.at(side == "x" ? "M" : "N").get<std::size_t>();
}

}  // namespace

RecordedOperand::RecordedOperand(const GoldenCase& golden, std::string_view side)
    : GemmOperand(LinesOf(golden, side), golden.params.at("K").get<std::size_t>(),
                  SlabOf(golden, golden.params.at("K").get<std::size_t>())),
      values_(Decoded(golden.At(Key("q", side)))),
      scales_(DecodedScales(golden.At(Key("s", side)))),
      amaxes_(Floats(golden, Key("amax_", side))) {
  const MatrixShape shape = FlattenShape(golden.At(Key("s", side)).shape);
  scale_rows_ = shape.rows;
  scale_cols_ = shape.cols;
}

float RecordedOperand::Scale(std::size_t line, std::size_t slab_index) const {
  // One scale for all lines, one per line, or one per 128 lines.
  const std::size_t row = scale_rows_ == 1 ? 0 : scale_rows_ == lines ? line : line / 128;
  const float scale = scales_[row * scale_cols_ + slab_index];
  if (amaxes_.empty()) return scale;
  // docs/numerics.md, "Dequantization": NVFP4; 1 / (6 * 448) as fp32.
  return scale * amaxes_[amaxes_.size() == 1 ? 0 : line] * 0x1.861862p-12f;
}

void RecordedOperand::Values(const LineRange& range, PanelSteps steps, float* out) const noexcept {
  for (std::size_t line = range.line_begin; line < range.line_end; ++line) {
    for (std::size_t pos = range.pos_begin; pos < range.pos_end; ++pos) {
      out[(line - range.line_begin) * steps.line + (pos - range.pos_begin) * steps.pos] =
          Value(line, pos);
    }
  }
}

void RecordedOperand::Scales(std::size_t line_begin, std::size_t line_end, std::size_t slab_index,
                             float* out) const noexcept {
  for (std::size_t line = line_begin; line < line_end; ++line) *out++ = Scale(line, slab_index);
}

RecordedProduct::RecordedProduct(const GoldenCase& recorded)
    : golden(recorded),
      rows(recorded.params.at("M").get<std::size_t>()),
      cols(recorded.params.at("N").get<std::size_t>()),
      length(recorded.params.at("K").get<std::size_t>()),
      dtype(GoldenDType(recorded.params.value("out_dtype", "fp32"))),
      accumulates(recorded.params.value("accumulate", false)) {}

std::string RecordedProduct::SchemeName(std::string_view side) const {
  const nlohmann::json& params = golden.params;
  if (Mode() == "nvfp4_gemm") return params.at("tile")[0] == 1 ? "nvfp4" : "nvfp4_2d";
  const auto element = params.at(fmt::format("q{}_dtype", side)).get<std::string>();
  if (Mode() == "mxfp8_gemm") return "mxfp8_" + element;
  if (Mode() == "fp8_per_tensor_gemm") return "fp8_" + element;
  const auto tile = params.at(fmt::format("tile_{}", side)).get<std::vector<int>>();
  return fmt::format("fp8_block{}x{}_{}", tile[0], tile[1], element);
}

SchemeInfo RecordedProduct::Describe(std::string_view side) const {
  SchemeInfo info{};
  info.element_bits = Mode() == "nvfp4_gemm" ? 4 : 8;
  info.layout.scale_type = ScaleType::kFloat32;
  info.block = kWholeTensor;
  if (Mode() == "fp8_blockwise_gemm") {
    const auto tile =
        golden.params.at(fmt::format("tile_{}", side)).get<std::vector<std::size_t>>();
    info.block = {tile[0], tile[1]};
  } else if (Mode() != "fp8_per_tensor_gemm") {
    info.block = {1, SlabOf(golden, length)};
    info.layout.scale_type = ScaleType::kE8M0;  // also for NVFP4: rules only test for kFloat32
  }
  return info;
}

FloatTensor RecordedProduct::Before() const {
  if (golden.Has("out_in")) return GoldenInput(golden, "out_in");
  return FloatTensor(dtype, {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)});
}

std::optional<FloatTensor> RecordedProduct::Bias() const {
  if (!golden.Has("bias")) return std::nullopt;
  const GoldenTensor& recorded = golden.At("bias");
  FloatTensor bias(GoldenDType(recorded.dtype), {static_cast<std::int64_t>(recorded.Items())});
  for (std::size_t i = 0; i < bias.size(); ++i) bias.SetBits(i, recorded.Bits(i));
  return bias;
}

void RecordedProduct::Expect(const FloatTensor& got, const std::string& context) const {
  ASSERT_EQ(got.size(), rows * cols) << context;
  if (golden.params.value("exactness", "") == "exact") {
    const GoldenTensor& y = golden.At("y");
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(SameItem(y.dtype, y.Bits(i), got.Bits(i))) << fmt::format(
          "{}: item {}, expected {:08x}, got {:08x}", context, i, y.Bits(i), got.Bits(i));
    }
  }
  if (!golden.Has("exact.fp64")) return;
  // A product of codes and scales passes through fewer than K + 8 roundings of fp32, of at most
  // 2^-24 each. Each added term, which the recorded sums contain, rounds once more.
  const std::optional<FloatTensor> bias = Bias();
  const FloatTensor before = Before();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double bias_term = bias ? bias->Value(i % cols) : 0.0;
    const double out_term = accumulates ? before.Value(i) : 0.0;
    double wanted = golden.At("exact.fp64").Double(i) - bias_term - out_term;
    const double magnitudes =
        golden.At("abs_sum.fp64").Double(i) - std::fabs(bias_term) - std::fabs(out_term);
    double error = static_cast<double>(length + 8) * 0x1p-24 * magnitudes;
    error += UnitRoundoff(dtype) * (std::fabs(wanted) + error);
    for (const double term : {bias_term, out_term}) {
      if (term == 0.0) continue;
      wanted += term;
      error += UnitRoundoff(dtype) * (std::fabs(wanted) + error);
    }
    ASSERT_LE(std::fabs(got.Value(i) - wanted), error)
        << fmt::format("{}: item {}, exact {}, got {}", context, i, wanted, got.Value(i));
  }
}

}  // namespace narrowfloat::conformance
