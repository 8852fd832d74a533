// SPDX-License-Identifier: Apache-2.0
// Recorded quantizations of TransformerEngine: groups cs, ds, mx, bs and nv, every byte, on
// every backend.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/golden_case.h"

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

/// Returns the recorder's name of each of our buffers.
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

/// Returns the input that decided item `item` of a data tensor, for the message.
std::string InputOf(const FloatTensor& in, const Recorded& recorded, std::size_t item) {
  const MatrixShape matrix = FlattenShape(in.shape());
  if (recorded.tensor == "data" || recorded.tensor == "data_colwise")
    return fmt::format(", input {:08x}", in.Bits(item));
  if (recorded.tensor == "data_t")
    return fmt::format(", input {:08x}",
                       in.Bits(item % matrix.rows * matrix.cols + item / matrix.rows));
  return "";
}

/// Compares a buffer with its record. Compact scales are recorded without their padding, which must
/// be zero, and where codes lie transposed as [line][block], however they are stored.
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
/// forgets that of a zero that was -0 before it was rounded.
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

/// Returns the specs that the case has records for: every direction, compact and swizzled.
std::vector<QuantSpec> SpecsOf(const GoldenCase& golden) {
  const bool columnwise = golden.Has("data_t") || golden.Has("data_colwise");
  std::vector<QuantSpec> specs;
  for (const bool swizzled : {false, true}) {
    // Where records disagree on scales, the swizzled ones are the Python reference's.
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

/// The layout that GEMMs read, padding included, is recorded too where all references agree.
TEST(GoldenBlockTest, ScalesLieAsGemmsReadThem) {
  std::size_t compared = 0;
  for (const auto& file : GoldenFiles("bs")) {
    const GoldenCase golden = LoadGolden(file);
    const FloatTensor in = GoldenInput(golden);
    if (&golden.Expected("scale_inv") != &golden.At("scale_inv") || in.size() == 0) continue;
    QuantSpec spec = GoldenSpec(golden);
    spec.columnwise = true;
    QuantizedBuffers got(spec, in.shape());
    Quantize(in.ConstView(), got.view);
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

class GoldenQuantizeTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenQuantizeTest, EveryBackendGivesTheRecordedBytes) {
  const GoldenCase golden = LoadGolden(GetParam());
  const FloatTensor in = GoldenInput(golden);
  for (const QuantSpec& spec : SpecsOf(golden)) {
    for (const KernelTable* backend : AvailableKernels()) {
      for (const ExecutionVariant& variant : kExecutionVariants) {
        QuantizedBuffers got(spec, in.shape());
        Quantize(in.ConstView(), got.view,
                 {.threads = variant.threads, .kernels = backend, .stores = variant.stores});
        ExpectRecorded(golden, in, got,
                       fmt::format("{} as {} on {} with {} threads", golden.name,
                                   PrintQuantSpec(spec), backend->name, variant.threads));
      }
    }
  }
}

TEST_P(GoldenQuantizeTest, DbiasIsTheRecordedOne) {
  const GoldenCase golden = LoadGolden(GetParam());
  if (!golden.Has("dbias")) return;
  const FloatTensor in = GoldenInput(golden);
  const GoldenTensor& expected = golden.At("dbias");
  for (const KernelTable* backend : AvailableKernels()) {
    QuantizedBuffers got(GoldenSpec(golden), in.shape());
    FloatTensor dbias(in.dtype(), {in.shape().back()});
    QuantizeDbias(in.ConstView(), got.view, dbias.View(), {.threads = 3, .kernels = backend});
    ExpectRecorded(golden, in, got, golden.name);
    for (std::size_t i = 0; i < dbias.size(); ++i)
      EXPECT_EQ(dbias.Bits(i), expected.Bits(i)) << golden.name << ", column " << i;
  }
}

/// Returns the files of NVFP4 without two that the Python reference's transform differs in: a NaN,
/// which its amax propagates, and fp32 items, whose sums it rounds on the way.
std::vector<std::filesystem::path> Nvfp4Files() {
  std::vector<std::filesystem::path> files = GoldenFiles("nv");
  std::erase_if(files, [](const auto& file) {
    return file.stem() == "rht_single_nan_bf16" || file.stem() == "rht_normal_fp32_sign";
  });
  return files;
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(CurrentScaling, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("cs")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(DelayedScaling, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("ds")),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Mxfp8, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("mx")), NameOf);
INSTANTIATE_TEST_SUITE_P(Blocks, GoldenQuantizeTest, testing::ValuesIn(GoldenFiles("bs")), NameOf);
INSTANTIATE_TEST_SUITE_P(Nvfp4, GoldenQuantizeTest, testing::ValuesIn(Nvfp4Files()), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
