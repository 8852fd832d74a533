// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/golden_checks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/numerics/scale.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/tensor/layout.h"
#include "tests/conformance/reference_codec.h"

namespace narrowfloat::conformance {
namespace {

struct Recorded {
  Role role;
  std::string tensor;
};

std::string ColumnwiseScales(const QuantSpec& spec) {
  if (spec.scheme->block == kWholeTensor) return "scale_inv";
  return spec.scheme->layout.columnwise_transposed ? "scale_inv_t" : "scale_inv_colwise";
}

/// Returns the name of each buffer in the records.
std::vector<Recorded> RecordedNames(const QuantSpec& spec) {
  const bool transposed = spec.scheme->layout.columnwise_transposed;
  const std::string suffix = spec.swizzled ? "_swizzled" : "";
  return {{Role::kRowwiseData, "data"},
          {Role::kRowwiseScaleInv, "scale_inv" + suffix},
          {Role::kColumnwiseData, transposed ? "data_t" : "data_colwise"},
          {Role::kColumnwiseScaleInv, ColumnwiseScales(spec) + suffix},
          {Role::kScale, "scale"},
          {Role::kAmaxRowwise, "amax"},
          {Role::kAmaxColumnwise, "amax_t"}};
}

std::uint32_t BitsAt(const std::byte* data, std::size_t item, std::size_t item_bytes) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, data + item * item_bytes, item_bytes);
  return bits;
}

/// Returns the input of item `item` of a data tensor, for the message; "" for other tensors.
std::string InputOf(const FloatTensor& in, const Recorded& recorded, std::size_t item) {
  const MatrixShape matrix = FlattenShape(in.shape());
  if (recorded.tensor == "data" || recorded.tensor == "data_colwise")
    return fmt::format(", input {:08x}", in.Bits(item));
  if (recorded.tensor == "data_t")
    return fmt::format(", input {:08x}",
                       in.Bits(item % matrix.rows * matrix.cols + item / matrix.rows));
  return "";
}

/// Returns the first difference of a buffer from its record, or "". Compact scales are recorded
/// without their padding, which must be zero. If `turned`, the record has them as [line][block],
/// and the buffer as [block][line].
std::string Compare(const GoldenTensor& expected, const FloatTensor& in, const Recorded& recorded,
                    const BufferPlan& buffer, bool turned, const std::byte* got) {
  const std::size_t item_bytes = expected.ItemBytes();
  const bool cropped = expected.shape.size() == 2 && recorded.tensor.starts_with("scale_inv");
  const MatrixShape stored = FlattenShape(buffer.shape);
  MatrixShape valid = cropped ? FlattenShape(expected.shape) : stored;
  if (cropped && turned) std::swap(valid.rows, valid.cols);
  if (!cropped && stored.Size() != expected.Items())
    return fmt::format("{}: {} items planned, {} recorded", recorded.tensor, stored.Size(),
                       expected.Items());
  for (std::size_t row = 0; row < stored.rows; ++row) {
    for (std::size_t col = 0; col < stored.cols; ++col) {
      const bool padding = row >= valid.rows || col >= valid.cols;
      const std::size_t item = cropped && turned ? col * valid.rows + row : row * valid.cols + col;
      const std::uint32_t want = padding ? 0 : expected.Bits(item);
      const std::uint32_t have = BitsAt(got, row * stored.cols + col, item_bytes);
      if (padding ? want == have : SameItem(expected.dtype, want, have)) continue;
      return fmt::format("{}[{}, {}]{}: expected {:0{}x}, got {:0{}x}{}", recorded.tensor, row, col,
                         padding ? " (padding)" : "", want, item_bytes * 2, have, item_bytes * 2,
                         InputOf(in, recorded, item));
    }
  }
  return "";
}

bool IsNegative(const FloatTensor& x, std::size_t item) {
  return (x.Bits(item) >> (ItemSize(x.dtype()) * 8 - 1)) != 0;
}

/// Returns the record of packed codes with the signs that the kernels keep: the Python reference
/// drops the sign of a value that rounds to -0.
GoldenTensor WithSignsOfZero(const GoldenCase& golden, const std::string& tensor,
                             const FloatTensor& in) {
  GoldenTensor codes = golden.Expected(tensor);
  if (codes.dtype != "e2m1x2") return codes;
  const bool transposed = tensor == "data_t";
  const bool transformed = transposed && golden.Has("rht_x_t");
  const FloatTensor x = transformed ? GoldenInput(golden, "rht_x_t") : in;
  const MatrixShape matrix = FlattenShape(in.shape());
  for (std::size_t i = 0; i < codes.bytes.size() * 2; ++i) {
    const std::size_t turned = i % matrix.rows * matrix.cols + i / matrix.rows;
    const auto code = std::to_integer<unsigned>(codes.bytes[i / 2]) >> i % 2 * 4 & 0xF;
    if (code == 0 && IsNegative(x, transposed && !transformed ? turned : i))
      codes.bytes[i / 2] |= static_cast<std::byte>(0x8 << i % 2 * 4);
  }
  return codes;
}

void ExpectRecorded(const GoldenCase& golden, const FloatTensor& in, const QuantizedBuffers& got,
                    const std::string& context) {
  EXPECT_TRUE(got.GuardsAreWhole()) << context << ": bytes around a buffer were written to";
  for (const Recorded& recorded : RecordedNames(got.view.spec)) {
    if (!got.Has(recorded.role)) continue;
    ASSERT_TRUE(golden.Has(recorded.tensor)) << context << ": no record of " << recorded.tensor;
    const auto buffer = std::ranges::find(got.plan(), recorded.role, &BufferPlan::role);
    EXPECT_EQ(Compare(WithSignsOfZero(golden, recorded.tensor, in), in, recorded, *buffer,
                      RecordIsTurned(golden), got.Data(recorded.role)),
              "")
        << context;
  }
}

/// Returns the specs whose buffers the case records: every direction, compact and swizzled.
std::vector<QuantSpec> SpecsOf(const GoldenCase& golden) {
  const bool columnwise = golden.Has("data_t") || golden.Has("data_colwise");
  std::vector<QuantSpec> specs;
  for (const bool swizzled : {false, true}) {
    // If the references disagree, the swizzled scales are recorded from the Python reference.
    const bool contested = &golden.Expected("scale_inv") != &golden.At("scale_inv");
    if (swizzled && (contested || !golden.Has("scale_inv_swizzled"))) continue;
    for (const auto& [rowwise, colwise] : {std::pair{true, false}, {false, true}, {true, true}}) {
      if (colwise && !columnwise) continue;
      QuantSpec spec = GoldenSpec(golden);
      spec.rowwise = rowwise;
      spec.columnwise = colwise;
      spec.swizzled = swizzled;
      specs.push_back(spec);
    }
  }
  return specs;
}

/// The names of a direction's codes and scales in the records, and the prefix of its values' names.
struct RecordedDirection {
  Direction direction;
  std::string data, scale_inv, values;
};

std::vector<RecordedDirection> DirectionsOf(const GoldenCase& golden) {
  // A dequantize case of 32x1 blocks has columnwise buffers under the rowwise names.
  const nlohmann::json block = golden.params.value("block", nlohmann::json::array({1, 1}));
  if (golden.op == "dequantize" && block[0] != 1)
    return {{Direction::kColumnwise, "data", "scale_inv", "dequant"}};
  std::vector<RecordedDirection> directions{{Direction::kRowwise, "data", "scale_inv", "dequant"}};
  // Columns of 1-D blocks have other codes than rows, and their values are not recorded. 4over6 may
  // choose other scales for columns.
  const bool alike =
      GoldenSpec(golden).scheme->block.rows != 1 && !golden.params.value("use_4over6", false);
  if (golden.Has("data_t") && alike)
    directions.push_back({Direction::kColumnwise, "data_t",
                          golden.Has("scale_inv_t") ? "scale_inv_t" : "scale_inv", "dequant"});
  if (golden.Has("data_colwise"))
    directions.push_back(
        {Direction::kColumnwise, "data_colwise", "scale_inv_colwise", "dequant_colwise"});
  return directions;
}

/// Returns buffers of a compact spec with the recorded codes and scales. Padding is not zero.
QuantizedBuffers Load(const GoldenCase& golden, const RecordedDirection& recorded,
                      const Shape& shape) {
  QuantSpec spec = GoldenSpec(golden);
  spec.rowwise = recorded.direction == Direction::kRowwise;
  spec.columnwise = !spec.rowwise;
  QuantizedBuffers buffers(spec, shape);
  const Role data = spec.rowwise ? Role::kRowwiseData : Role::kColumnwiseData;
  const Role scales = spec.rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
  const GoldenTensor& codes = golden.At(recorded.data);
  const GoldenTensor& scale_inv = golden.At(recorded.scale_inv);
  std::ranges::copy(codes.bytes, buffers.Data(data));
  const MatrixShape valid = FlattenShape(scale_inv.shape);
  const std::size_t item = scale_inv.ItemBytes();
  const std::size_t stored_cols = FlattenShape(buffers.view[scales].shape).cols;
  const bool turned = RecordIsTurned(golden);
  for (std::size_t i = 0; i < valid.Size(); ++i) {
    const std::size_t row = i / valid.cols, col = i % valid.cols;
    const std::size_t place = turned ? col * stored_cols + row : row * stored_cols + col;
    std::memcpy(buffers.Data(scales) + place * item, scale_inv.bytes.data() + i * item, item);
  }
  const Role amax_role = spec.rowwise ? Role::kAmaxRowwise : Role::kAmaxColumnwise;
  if (spec.scheme->layout.amax == AmaxBuffers::kPerDirection) {
    const GoldenTensor& amax = golden.At(spec.rowwise ? "amax" : "amax_t");
    std::memcpy(buffers.Data(amax_role), amax.bytes.data(), amax.bytes.size());
  }
  return buffers;
}

void ExpectValues(const GoldenTensor& expected, const QuantizedBuffers& in, const Verbs& verbs,
                  const std::string& context) {
  FloatTensor out(GoldenDType(expected.dtype), in.view.shape);
  verbs.Dequantize(in, out);
  ASSERT_EQ(out.size(), expected.Items());
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_TRUE(SameItem(expected.dtype, expected.Bits(i), out.Bits(i)))
        << fmt::format("{} on {}: item {}, expected {:08x}, got {:08x}", context, verbs.Name(), i,
                       expected.Bits(i), out.Bits(i));
  }
  ASSERT_TRUE(out.GuardsAreWhole()) << context;
}

/// Returns the same codes with swizzled scales; nullopt if the scheme has no such layout.
std::optional<QuantizedBuffers> Swizzled(const QuantizedBuffers& compact, const Verbs& verbs) {
  if (!compact.view.spec.scheme->layout.swizzles) return std::nullopt;
  QuantSpec spec = compact.view.spec;
  spec.swizzled = true;
  QuantizedBuffers swizzled(spec, compact.view.shape);
  verbs.Swizzle(compact, swizzled);
  return swizzled;
}

std::uint32_t CodeAt(const std::byte* codes, std::size_t item) {
  return std::to_integer<std::uint32_t>(codes[item / 2]) >> item % 2 * 4 & 0xFu;
}

/// Returns the code with the input's sign. The recorded reference drops the sign of a value that
/// rounds to -0.
std::uint32_t WithSignOf(const FloatTensor& in, std::size_t item, std::uint32_t code) {
  const bool negative = (in.Bits(item) >> (ItemSize(in.dtype()) * 8 - 1)) != 0;
  return code == 0 && negative ? 8u : code;
}

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

/// Compares the codes of the verb under a scale of 1 with the recorded codes.
void CheckEncoded(const GoldenCase& golden, const std::string& format, const Verbs& verbs) {
  const FloatTensor in = GoldenInput(golden);
  const QuantSpec spec{.scheme = &FindScheme("fp8_" + format), .scale = 1.0f};
  QuantizedBuffers out(spec, in.shape());
  verbs.Quantize(in, out);
  for (std::size_t i = 0; i < in.size(); ++i) {
    ExpectItem(golden, "code", i, std::to_integer<std::uint32_t>(out.Data(Role::kRowwiseData)[i]),
               in.Bits(i));
  }
}

void CheckCasts(const GoldenCase& golden, const Verbs& verbs) {
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
  if (encodes && (format == "e4m3" || format == "e5m2")) CheckEncoded(golden, format, verbs);
}

/// Checks the scales of a tensor of one column, whose items are the recorded amaxes of its blocks.
void CheckMxScales(const GoldenCase& golden, const Verbs& verbs) {
  const GoldenTensor& amax = golden.At("amax");
  FloatTensor in(DType::kFloat32, {amax.shape.at(0), 1});
  for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, amax.Bits(i));
  const QuantSpec spec{.scheme =
                           &FindScheme("mxfp8_" + golden.params.at("q_dtype").get<std::string>())};
  QuantizedBuffers out(spec, in.shape());
  verbs.Quantize(in, out);
  const std::size_t row_bytes = FlattenShape(out.view[Role::kRowwiseScaleInv].shape).cols;
  for (std::size_t i = 0; i < in.size(); ++i) {
    // No tensor has a NaN amax, because the amax ignores NaN.
    if (!SameItem("fp32", in.Bits(i), 0x7FC00000u)) {
      ExpectItem(golden, "code", i,
                 std::to_integer<std::uint32_t>(out.Data(Role::kRowwiseScaleInv)[i * row_bytes]),
                 in.Bits(i));
    }
  }
}

void CheckTensorScales(const GoldenCase& golden, const Verbs& verbs) {
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
    verbs.Quantize(in, out);
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

/// Returns the largest value of the case's format. Source: OCP OFP8 1.0.
float Fp8Max(const GoldenCase& golden) {
  return golden.params.at("q_dtype") == "e4m3" ? 448.0f : 57344.0f;
}

DelayedScaleRule RuleOf(const GoldenCase& golden) {
  return {.fp8_max = Fp8Max(golden),
          .margin = golden.params.at("margin").get<float>(),
          .algorithm = FindAmaxAlgorithm(golden.params.at("amax_compute_algo").get<std::string>())};
}

/// Runs all steps of a case and compares them with the record of `reference`. In the record of the
/// reduced variant, row 0 has half of each amax, and the buffer of the reduction the amax itself.
void CheckUpdates(const GoldenCase& golden, const std::string& reference, bool reduced,
                  const Verbs& verbs) {
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
    verbs.UpdateDelayedScale(ViewOf(history, {rows, columns}), ViewOf(scale, {columns}),
                             RuleOf(golden), reduced ? &newest_view : nullptr);
    const std::string context = golden.name + " as " + reference;
    ExpectStep(golden.From(reference, "history"), step, history, context + ", history");
    ExpectStep(golden.From(reference, "scale"), step, scale, context + ", scale");
  }
}

/// Runs training steps: quantizes with the scale of the step before, stores the amax in the
/// history, and updates the scale.
void CheckTraining(const GoldenCase& golden, const Verbs& verbs) {
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
    verbs.Quantize(in, quantized);
    const GoldenTensor& codes = golden.At("data");
    ASSERT_EQ(std::memcmp(codes.bytes.data() + step * in.size(), quantized.Data(Role::kRowwiseData),
                          in.size()),
              0)
        << golden.name << ", codes of step " << step;
    std::memcpy(&history[0], quantized.Data(Role::kAmaxRowwise), sizeof history[0]);
    ExpectStep(golden.At("amax"), step, {history[0]}, golden.name + ", amax");
    verbs.UpdateDelayedScale(ViewOf(history, {rows, 1}), ViewOf(scale, {1}),
                             {.fp8_max = Fp8Max(golden)}, nullptr);
    ExpectStep(golden.At("history_after"), step, history, golden.name + ", history");
  }
  ExpectStep(golden.At("scale_final"), 0, scale, golden.name + ", last scale");
}

}  // namespace

std::vector<std::filesystem::path> GoldenNvfp4Files() {
  std::vector<std::filesystem::path> files = GoldenFiles("nv");
  std::erase_if(files, [](const auto& file) {
    return file.stem() == "rht_single_nan_bf16" || file.stem() == "rht_normal_fp32_sign";
  });
  return files;
}

void CheckQuantize(const GoldenCase& golden, const Verbs& verbs) {
  const FloatTensor in = GoldenInput(golden);
  for (const QuantSpec& spec : SpecsOf(golden)) {
    QuantizedBuffers got(spec, in.shape());
    verbs.Quantize(in, got);
    ExpectRecorded(golden, in, got,
                   fmt::format("{} as {} on {}", golden.name, PrintQuantSpec(spec), verbs.Name()));
  }
}

void CheckDbias(const GoldenCase& golden, const Verbs& verbs) {
  if (!golden.Has("dbias")) return;
  const FloatTensor in = GoldenInput(golden);
  const GoldenTensor& expected = golden.At("dbias");
  QuantizedBuffers got(GoldenSpec(golden), in.shape());
  FloatTensor dbias(in.dtype(), {in.shape().back()});
  verbs.QuantizeDbias(in, got, dbias);
  ExpectRecorded(golden, in, got, golden.name);
  for (std::size_t i = 0; i < dbias.size(); ++i) {
    EXPECT_EQ(dbias.Bits(i), expected.Bits(i))
        << golden.name << " on " << verbs.Name() << ", column " << i;
  }
}

void CheckScalesForGemms(const Verbs& verbs) {
  std::size_t compared = 0;
  for (const auto& file : GoldenFiles("bs")) {
    const GoldenCase golden = LoadGolden(file);
    const FloatTensor in = GoldenInput(golden);
    if (&golden.Expected("scale_inv") != &golden.At("scale_inv") || in.size() == 0) continue;
    QuantSpec spec = GoldenSpec(golden);
    spec.columnwise = true;
    QuantizedBuffers got(spec, in.shape());
    verbs.Quantize(in, got);
    for (const auto& [role, tensor] : {std::pair{Role::kRowwiseScaleInv, "scale_inv_gemm"},
                                       std::pair{Role::kColumnwiseScaleInv, "scale_inv_t_gemm"}}) {
      if (!golden.Has(tensor)) continue;
      EXPECT_EQ(golden.At(tensor).shape, got.view[role].shape) << golden.name << " " << tensor;
      ASSERT_EQ(golden.At(tensor).bytes.size(), got.Bytes(role)) << golden.name << " " << tensor;
      EXPECT_EQ(std::memcmp(golden.At(tensor).bytes.data(), got.Data(role), got.Bytes(role)), 0)
          << golden.name << " " << tensor;
      ++compared;
    }
  }
  EXPECT_GT(compared, 200u);
}

void CheckDequantize(const GoldenCase& golden, const Verbs& verbs) {
  for (const RecordedDirection& recorded : DirectionsOf(golden)) {
    for (const char* type : {"fp32", "bf16", "fp16"}) {
      const std::string name = recorded.values + "." + type;
      if (!golden.Has(name)) continue;
      const Shape shape = golden.params.at("shape").get<Shape>();
      const QuantizedBuffers in = Load(golden, recorded, shape);
      const std::string context = golden.name + " " + recorded.data + " to " + name;
      ExpectValues(golden.At(name), in, verbs, context);
      if (const auto swizzled = Swizzled(in, verbs))
        ExpectValues(golden.At(name), *swizzled, verbs, context + ", swizzled");
    }
  }
}

void CheckMxfp4(const GoldenCase& golden, const Verbs& verbs) {
  const FloatTensor in = GoldenInput(golden);
  const GoldenTensor &codes = golden.At("data"), &scales = golden.At("scale_inv");
  QuantizedBuffers got(GoldenSpec(golden), in.shape());
  verbs.Quantize(in, got);
  EXPECT_TRUE(got.GuardsAreWhole());
  ASSERT_EQ(got.Bytes(Role::kRowwiseData), codes.bytes.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(CodeAt(got.Data(Role::kRowwiseData), i),
              WithSignOf(in, i, CodeAt(codes.bytes.data(), i)))
        << "code " << i;
  }
  const MatrixShape stored = FlattenShape(got.view[Role::kRowwiseScaleInv].shape);
  const MatrixShape valid = FlattenShape(scales.shape);
  for (std::size_t i = 0; i < stored.Size(); ++i) {
    const std::size_t row = i / stored.cols, col = i % stored.cols;
    const bool padding = row >= valid.rows || col >= valid.cols;
    ASSERT_EQ(std::to_integer<std::uint32_t>(got.Data(Role::kRowwiseScaleInv)[i]),
              padding ? 0u : scales.Bits(row * valid.cols + col))
        << "scale " << row << ", " << col;
  }

  const GoldenTensor& factors = golden.At("scale_inv.fp32");
  FloatTensor values(DType::kFloat32, in.shape());
  verbs.Dequantize(got, values);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float scale = std::bit_cast<float>(factors.Bits(i / kMxBlock));
    const float value = Decode<E2M1>(CodeAt(got.Data(Role::kRowwiseData), i));
    ASSERT_EQ(values.Bits(i), std::bit_cast<std::uint32_t>(value * scale)) << i;
  }
}

void CheckTable(const GoldenCase& golden, const Verbs& verbs) {
  SCOPED_TRACE(verbs.Name());
  const std::string mode = golden.params.at("mode");
  if (mode == "encode" || mode == "decode") return CheckCasts(golden, verbs);
  if (mode == "mxfp8_scale_from_amax") return CheckMxScales(golden, verbs);
  if (mode == "nvfp4_block_scale") return CheckNvfp4Scales(golden);
  ASSERT_EQ(mode, "fp8_scale_from_amax") << golden.name;
  CheckTensorScales(golden, verbs);
}

void CheckSwizzle(const GoldenCase& golden, const Verbs& verbs) {
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

  verbs.Swizzle(compact, swizzled);
  EXPECT_EQ(std::memcmp(swizzled.Data(role), expected.data(), expected.size()), 0) << golden.name;
  verbs.Unswizzle(swizzled, back);
  EXPECT_EQ(Difference(compact, back), "") << golden.name;
}

void CheckHadamard(const GoldenCase& golden, const Verbs& verbs) {
  const FloatTensor x = GoldenInput(golden);
  const auto rows = static_cast<std::size_t>(x.shape()[0]);
  const auto cols = static_cast<std::size_t>(x.shape()[1]);
  // The record transforms along rows, the verb along columns.
  FloatTensor in(x.dtype(), {x.shape()[1], x.shape()[0]});
  for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, x.Bits(i % rows * cols + i / rows));
  FloatTensor out(in.dtype(), in.shape());
  verbs.HadamardTransform(in, out, golden.params.at("sign_mask").get<std::uint32_t>());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double exact = golden.At("exact.fp64").Double(i % rows * cols + i / rows);
    const std::uint32_t expected =
        in.dtype() == DType::kFloat32
            ? BitsOf(static_cast<float>(exact))
            : ReferenceCodecOf(DTypeName(in.dtype())).Encode(exact, PastLargest::kIsInfinite);
    EXPECT_EQ(out.Bits(i), expected) << golden.name << " on " << verbs.Name() << ", " << i;
  }
  EXPECT_TRUE(out.GuardsAreWhole());
}

void CheckDelayedScale(const GoldenCase& golden, const Verbs& verbs) {
  if (golden.params.at("mode") == "fp8_delayed_scaling_steps") return CheckTraining(golden, verbs);
  const DelayedScaleRule rule = RuleOf(golden);
  ASSERT_EQ(golden.At("scaled_max").Float(0),
            std::ldexp(rule.fp8_max, -static_cast<int>(rule.margin)));
  CheckUpdates(golden, "port.kernel_bulk", false, verbs);
  CheckUpdates(golden, "port.kernel_bulk_reduced", true, verbs);
}

}  // namespace narrowfloat::conformance
