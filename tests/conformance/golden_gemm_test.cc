// SPDX-License-Identifier: Apache-2.0
// Compares MultiplyTile, with operands decoded by the test, and the verb Qgemm with the recorded
// products of group gm.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/tensor/layout.h"
#include "tests/conformance/golden_gemm.h"

namespace narrowfloat::conformance {
namespace {

GemmRule RuleFor(const RecordedProduct& product) {
  const std::optional<FloatTensor> bias = product.Bias();
  return GemmRuleOf(product.Describe("x"), product.Describe("w"), product.dtype,
                    bias ? std::optional(bias->dtype()) : std::nullopt);
}

std::vector<float> BiasItems(const RecordedProduct& product) {
  std::vector<float> items;
  if (const auto bias = product.Bias()) {
    for (std::size_t i = 0; i < bias->size(); ++i)
      items.push_back(static_cast<float>(bias->Value(i)));
  }
  return items;
}

/// Returns the product by MultiplyTile, in tiles of `step` rows and columns.
FloatTensor ByTiles(const RecordedProduct& product, std::size_t step) {
  const RecordedOperand x(product.golden, "x"), w(product.golden, "w");
  FloatTensor out = product.Before();
  const auto row_stride = static_cast<std::ptrdiff_t>(product.cols * ItemSize(product.dtype));
  const GemmResult result{
      {out.View().data, row_stride}, product.dtype, product.accumulates, BiasItems(product)};
  for (std::size_t row = 0; row < product.rows; row += step) {
    for (std::size_t col = 0; col < product.cols; col += step) {
      MultiplyTile(
          x, w, RuleFor(product),
          {row, std::min(row + step, product.rows), col, std::min(col + step, product.cols)},
          result);
    }
  }
  return out;
}

/// Computes the sum of one item without the library, product by product. Source: docs/numerics.md,
/// "Products".
float ReferenceSum(const RecordedProduct& product, const RecordedOperand& x,
                   const RecordedOperand& w, std::size_t row, std::size_t col) {
  const bool blockwise = product.Mode() == "fp8_blockwise_gemm";
  const bool x_is_tiles = product.Describe("x").block.rows > 1;
  const bool w_is_tiles = product.Describe("w").block.rows > 1;
  double sum = 0;
  for (std::size_t begin = 0; begin < product.length; begin += x.slab) {
    float dot = 0;
    for (std::size_t k = begin; k < std::min(begin + x.slab, product.length); ++k) {
      const float item = x.Value(row, k) * w.Value(col, k);
      dot = dot + item;
    }
    const float sx = x.Scale(row, begin / x.slab), sw = w.Scale(col, begin / x.slab);
    const auto y = static_cast<float>(sum);
    if (!blockwise) {
      sum += static_cast<double>(sx) * static_cast<double>(sw) * static_cast<double>(dot);
    } else if (!x_is_tiles) {
      sum = std::fma(dot * sx, sw, y);
    } else {
      sum = w_is_tiles ? std::fma(dot, sx * sw, y) : std::fma(dot * sw, sx, y);
    }
  }
  return static_cast<float>(sum);
}

/// Copies the recorded scales, which are line-major, to their positions in a buffer.
void PlaceScales(const GoldenTensor& scales, const ScaleGrid& grid, ScalePlacement placement,
                 std::byte* stored) {
  ASSERT_EQ(scales.Items(), grid.lines * grid.blocks);
  const ScaleStrides strides = MakeScaleStrides(grid, placement);
  const std::size_t item = scales.ItemBytes();
  for (std::size_t i = 0; i < scales.Items(); ++i) {
    const std::size_t place =
        strides.LineOffset(i / grid.blocks) + strides.BlockOffset(i % grid.blocks);
    std::memcpy(stored + place * item, scales.bytes.data() + i * item, item);
  }
}

/// Returns buffers with an operand of the product in one direction. Padding is not zero.
QuantizedBuffers Load(const RecordedProduct& product, std::string_view side, Direction direction,
                      ScalePlacement placement) {
  const GoldenTensor& codes = product.golden.At(fmt::format("q{}", side));
  const GoldenTensor& scales = product.golden.At(fmt::format("s{}", side));
  const std::string amax = fmt::format("amax_{}", side);
  const bool rowwise = direction == Direction::kRowwise;
  const std::size_t lines = side == "x" ? product.rows : product.cols;
  QuantSpec spec{.scheme = &FindScheme(product.SchemeName(side)),
                 .rowwise = rowwise,
                 .columnwise = !rowwise,
                 .swizzled = placement == ScalePlacement::kSwizzled};
  if (product.golden.Has(amax) && product.golden.At(amax).Items() > 1) {
    EXPECT_TRUE(SetSpecField(spec, "row_scaled", true));
  }
  const MatrixShape matrix =
      rowwise ? MatrixShape{lines, product.length} : MatrixShape{product.length, lines};
  QuantizedBuffers buffers(
      spec, {static_cast<std::int64_t>(matrix.rows), static_cast<std::int64_t>(matrix.cols)});
  std::byte* data = buffers.Data(rowwise ? Role::kRowwiseData : Role::kColumnwiseData);
  if (rowwise || spec.scheme->layout.columnwise_transposed) {
    std::ranges::copy(codes.bytes, data);
  } else {
    for (std::size_t i = 0; i < codes.Items(); ++i)
      data[i % product.length * lines + i / product.length] = codes.bytes[i];
  }
  PlaceScales(scales, MakeScaleGrid(*spec.scheme, direction, matrix), placement,
              buffers.Data(rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv));
  if (product.golden.Has(amax)) {
    const GoldenTensor& recorded = product.golden.At(amax);
    std::memcpy(buffers.Data(rowwise ? Role::kAmaxRowwise : Role::kAmaxColumnwise),
                recorded.bytes.data(), recorded.bytes.size());
  }
  return buffers;
}

struct LayoutCase {
  GemmLayout layout;
  Direction a, b;
};
constexpr LayoutCase kLayouts[] = {
    {GemmLayout::kTN, Direction::kRowwise, Direction::kRowwise},
    {GemmLayout::kNN, Direction::kRowwise, Direction::kColumnwise},
    {GemmLayout::kNT, Direction::kColumnwise, Direction::kColumnwise},
};

FloatTensor ByVerb(const RecordedProduct& product, const LayoutCase& layout,
                   ScalePlacement placement, int threads) {
  const QuantizedBuffers a = Load(product, "x", layout.a, placement);
  const QuantizedBuffers b = Load(product, "w", layout.b, placement);
  FloatTensor out = product.Before();
  const std::optional<FloatTensor> bias = product.Bias();
  GemmOptions options{.layout = layout.layout};
  if (product.accumulates) options.output = GemmOutput::kAccumulate;
  if (bias) options.bias = bias->ConstView();
  Qgemm(a.view, b.view, out.View(), options, {.threads = threads});
  EXPECT_TRUE(out.GuardsAreWhole());
  return out;
}

class GoldenGemmTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenGemmTest, TheArithmeticGivesTheRecord) {
  const GoldenCase golden = LoadGolden(GetParam());
  const RecordedProduct product(golden);
  const FloatTensor whole = ByTiles(product, kGemmTileRows);
  product.Expect(whole, golden.name);
  EXPECT_EQ(Difference(whole, ByTiles(product, 7)), "") << golden.name << " in other tiles";
}

TEST_P(GoldenGemmTest, TheArithmeticMatchesTheReference) {
  const GoldenCase golden = LoadGolden(GetParam());
  RecordedProduct product(golden);
  const RecordedOperand x(golden, "x"), w(golden, "w");
  FloatTensor sums(DType::kFloat32, product.Before().shape());
  const GemmResult result{{sums.View().data, static_cast<std::ptrdiff_t>(product.cols * 4)},
                          DType::kFloat32,
                          false,
                          {}};
  for (std::size_t row = 0; row < product.rows; row += kGemmTileRows) {
    MultiplyTile(x, w, RuleFor(product),
                 {row, std::min(row + kGemmTileRows, product.rows), 0, product.cols}, result);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float expected = ReferenceSum(product, x, w, i / product.cols, i % product.cols);
    ASSERT_EQ(sums.Bits(i), std::bit_cast<std::uint32_t>(expected)) << golden.name << " item " << i;
  }
}

TEST_P(GoldenGemmTest, TheVerbGivesTheRecordInEveryLayout) {
  const GoldenCase golden = LoadGolden(GetParam());
  const RecordedProduct product(golden);
  const FloatTensor first = ByVerb(product, kLayouts[0], ScalePlacement::kCompact, 1);
  product.Expect(first, golden.name);
  for (const LayoutCase& layout : kLayouts) {
    for (const ScalePlacement placement : {ScalePlacement::kCompact, ScalePlacement::kSwizzled}) {
      const bool swizzles = FindScheme(product.SchemeName("x")).layout.swizzles;
      if (placement == ScalePlacement::kSwizzled && !swizzles) continue;
      // The layout of the operands does not change the order of a sum, nor its bytes.
      EXPECT_EQ(Difference(first, ByVerb(product, layout, placement, 3)), "")
          << golden.name << ", layout " << static_cast<int>(layout.layout);
    }
  }
}

TEST(GoldenGemmCasesTest, AllRecordsAreThere) {
  EXPECT_EQ(GoldenFiles("gm").size(), 36u);
}

std::string NameOf(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Recorded, GoldenGemmTest, testing::ValuesIn(GoldenFiles("gm")), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
