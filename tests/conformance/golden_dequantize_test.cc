// SPDX-License-Identifier: Apache-2.0
// Recorded dequantizations: group dq, and what cs, ds, mx, bs and nv record beside their codes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "tests/conformance/golden_case.h"

namespace narrowfloat::conformance {
namespace {

/// Codes and scales of one direction as recorded, and the prefix of what they decode to.
struct RecordedDirection {
  Direction direction;
  std::string data, scale_inv, values;
};

std::vector<RecordedDirection> DirectionsOf(const GoldenCase& golden) {
  // A dequantize case of 32x1 blocks holds columnwise buffers under the plain names.
  const nlohmann::json block = golden.params.value("block", nlohmann::json::array({1, 1}));
  if (golden.op == "dequantize" && block[0] != 1)
    return {{Direction::kColumnwise, "data", "scale_inv", "dequant"}};
  std::vector<RecordedDirection> directions{{Direction::kRowwise, "data", "scale_inv", "dequant"}};
  // The columns of 1-D blocks are quantized on their own; what they decode to is not recorded.
  // 4over6 may choose otherwise for columns.
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

/// Buffers of a compact spec that hold the recorded codes and scales, padding garbage.
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

void ExpectValues(const GoldenTensor& expected, const QuantizedBuffers& in,
                  const std::string& context) {
  const DType dtype = GoldenDType(expected.dtype);
  for (const KernelTable* backend : AvailableKernels()) {
    for (const ExecutionVariant& variant : kExecutionVariants) {
      FloatTensor out(dtype, in.view.shape);
      Dequantize(in.view, out.View(),
                 {.threads = variant.threads, .kernels = backend, .stores = variant.stores});
      ASSERT_EQ(out.size(), expected.Items());
      for (std::size_t i = 0; i < out.size(); ++i) {
        ASSERT_TRUE(SameItem(expected.dtype, expected.Bits(i), out.Bits(i))) << fmt::format(
            "{} on {} with {} threads: item {}, expected {:08x}, got {:08x}", context,
            backend->name, variant.threads, i, expected.Bits(i), out.Bits(i));
      }
      ASSERT_TRUE(out.GuardsAreWhole()) << context;
    }
  }
}

/// Returns the same codes with swizzled scales, where the scheme has such a layout.
std::optional<QuantizedBuffers> Swizzled(const QuantizedBuffers& compact) {
  if (!compact.view.spec.scheme->layout.swizzles) return std::nullopt;
  QuantSpec spec = compact.view.spec;
  spec.swizzled = true;
  QuantizedBuffers swizzled(spec, compact.view.shape);
  Swizzle(compact.view, swizzled.view);
  return swizzled;
}

class GoldenDequantizeTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenDequantizeTest, EveryBackendGivesTheRecordedValues) {
  const GoldenCase golden = LoadGolden(GetParam());
  for (const RecordedDirection& recorded : DirectionsOf(golden)) {
    for (const char* type : {"fp32", "bf16", "fp16"}) {
      const std::string name = recorded.values + "." + type;
      if (!golden.Has(name)) continue;
      const Shape shape = golden.params.at("shape").get<Shape>();
      const QuantizedBuffers in = Load(golden, recorded, shape);
      const std::string context = golden.name + " " + recorded.data + " to " + name;
      ExpectValues(golden.At(name), in, context);
      if (const auto swizzled = Swizzled(in))
        ExpectValues(golden.At(name), *swizzled, context + ", swizzled");
    }
  }
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Given, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("dq")), NameOf);
INSTANTIATE_TEST_SUITE_P(CurrentScaling, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("cs")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(DelayedScaling, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("ds")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Mxfp8, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("mx")), NameOf);
INSTANTIATE_TEST_SUITE_P(Blocks, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("bs")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Nvfp4, GoldenDequantizeTest, testing::ValuesIn(GoldenFiles("nv")), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
