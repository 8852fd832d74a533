// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/cpu/fast_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "narrowfloat/kernels/scalar/items.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/testing.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

using Random = std::mt19937;

/// Returns a spec with both directions, or with one if columnwise codes would not fill bytes.
QuantSpec BothOf(const std::string& text, std::int64_t rows) {
  QuantSpec spec = ParseQuantSpec(text);
  spec.columnwise = rows % 2 == 0 || spec.scheme->element_bits == 8;
  return spec;
}

Floats Normal(std::size_t count, Random& random, float deviation = 1.0f) {
  std::normal_distribution<float> normal(0.0f, deviation);
  Floats items(count);
  for (float& item : items) item = normal(random);
  return items;
}

Quantized Make(const std::string& spec, std::int64_t rows, std::int64_t cols, Random& random,
               float deviation = 1.0f) {
  return {BothOf(spec, rows),
          {rows, cols},
          Normal(static_cast<std::size_t>(rows * cols), random, deviation)};
}

/// Returns the decoded values of an operand in binary64, [line][position].
std::vector<double> Values(const Quantized& tensor, Direction direction, std::size_t& lines) {
  const auto operand = MakeGemmOperand(tensor.view, direction);
  lines = operand->lines;
  Floats codes(operand->lines * operand->length), scales(operand->lines);
  operand->Values({0, operand->lines, 0, operand->length}, {operand->length, 1}, codes.data());
  std::vector<double> values(codes.begin(), codes.end());
  for (std::size_t k = 0; k < operand->length; ++k) {
    if (k % operand->slab == 0)
      operand->Scales(0, operand->lines, k / operand->slab, scales.data());
    for (std::size_t line = 0; line < operand->lines; ++line)
      values[line * operand->length + k] *= static_cast<double>(scales[line]);
  }
  return values;
}

/// Exact products, and the sums of the magnitudes of their terms.
struct Exact {
  std::vector<double> products, magnitudes;
  double length;
};
Exact Multiply(const Quantized& a, const Quantized& b, GemmLayout layout) {
  const bool a_rows = layout != GemmLayout::kNT, b_rows = layout == GemmLayout::kTN;
  std::size_t rows, cols;
  const auto left = Values(a, a_rows ? Direction::kRowwise : Direction::kColumnwise, rows);
  const auto right = Values(b, b_rows ? Direction::kRowwise : Direction::kColumnwise, cols);
  const std::size_t length = left.size() / rows;
  Exact exact{std::vector<double>(rows * cols), std::vector<double>(rows * cols),
              static_cast<double>(length)};
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c) {
      for (std::size_t k = 0; k < length; ++k) {
        const double term = left[r * length + k] * right[c * length + k];
        exact.products[r * cols + c] += term;
        exact.magnitudes[r * cols + c] += std::abs(term);
      }
    }
  }
  return exact;
}

/// Returns the unit roundoff of a type's normal numbers. LeastError: half its smallest subnormal.
double Roundoff(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
}
double LeastError(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-150 : dtype == DType::kFloat16 ? 0x1p-25 : 0x1p-134;
}

float Item(DType dtype, const std::byte* row, std::size_t i) {
  return ForType(dtype, []<class T>() { return &LoadItem<T>; })(row, i);
}

bool CanRun() {
  return HasBFloat16Products() && std::getenv("NF_ONEDNN_MODULE") != nullptr;
}
#define NF_NEEDS_ONEDNN() \
  if (!CanRun()) GTEST_SKIP() << "needs bfloat16 instructions and a build with oneDNN"

std::vector<std::byte> Product(const Quantized& a, const Quantized& b, GemmLayout layout,
                               GemmMode mode, DType dtype = DType::kFloat32, int threads = 0) {
  const Shape shape = QgemmShape(a.view, b.view, layout);
  std::vector<std::byte> out(FlattenShape(shape).Size() * ItemSize(dtype));
  Qgemm(a.view, b.view, {out.data(), dtype, shape, {}, {}}, {.layout = layout, .mode = mode},
        {.threads = threads});
  return out;
}

/// Returns the items of the fast product, computed into rows with a stride of `row_stride` bytes.
std::vector<std::byte> FastProductIntoRows(const Quantized& a, const Quantized& b,
                                           GemmLayout layout, DType dtype, std::size_t row_stride) {
  const Shape shape = QgemmShape(a.view, b.view, layout);
  const auto [rows, cols] = FlattenShape(shape);
  const std::size_t item = ItemSize(dtype), used = cols * item;
  std::vector<std::byte> memory(rows * std::max(row_stride, used)), out;
  Qgemm(a.view, b.view,
        {memory.data(),
         dtype,
         shape,
         {static_cast<std::ptrdiff_t>(row_stride), static_cast<std::ptrdiff_t>(item)},
         {}},
        {.layout = layout, .mode = GemmMode::kFast});
  for (std::size_t row = 0; row < rows; ++row) {
    const std::byte* items = memory.data() + row * row_stride;
    out.insert(out.end(), items, items + used);
  }
  return out;
}

// Checks the error bound. Decoded scales of NVFP4 have two rounding errors each, the factor has no
// error. The product has K - 1 roundings of sums in any order, and one by the factor: fewer than
// K + 8 in total. One rounding to the result's type follows.
void ExpectWithinBound(const Exact& exact, const std::vector<std::byte>& out, DType dtype) {
  for (std::size_t i = 0; i < exact.products.size(); ++i) {
    const double got = Item(dtype, out.data(), i), want = exact.products[i];
    if (std::abs(want) >= 0x1p127) continue;  // the bound does not hold if fp32 overflows
    const double sum = (exact.length + 8) * 0x1p-24 * exact.magnitudes[i];
    const double rounding = (std::abs(want) + sum) * Roundoff(dtype) + LeastError(dtype);
    ASSERT_LE(std::abs(got - want), sum + rounding)
        << "item " << i << ": " << got << " for " << want;
  }
}

// Checks results with gaps between rows, adjacent rows, and without strides, in this order: oneDNN
// caches the kernel of one layout and reuses it for others. A single row may have a stride of 0.
void ExpectWithinBound(const Quantized& a, const Quantized& b, GemmLayout layout, DType dtype) {
  const Exact exact = Multiply(a, b, layout);
  const auto [rows, cols] = FlattenShape(QgemmShape(a.view, b.view, layout));
  const std::size_t used = cols * ItemSize(dtype), apart = used + 3 * ItemSize(dtype);
  if (rows == 1) ExpectWithinBound(exact, FastProductIntoRows(a, b, layout, dtype, 0), dtype);
  for (const std::size_t stride : {apart, used})
    ExpectWithinBound(exact, FastProductIntoRows(a, b, layout, dtype, stride), dtype);
  ExpectWithinBound(exact, Product(a, b, layout, GemmMode::kFast, dtype), dtype);
}

struct Pair {
  const char *a, *b;
};
constexpr Pair kPairs[] = {
    {"fp8_e4m3", "fp8_e4m3"},
    {"fp8_e5m2", "fp8_e4m3"},
    {"mxfp8_e4m3", "mxfp8_e4m3"},
    {"mxfp8_e5m2", "mxfp8_2d_e4m3"},
    {"mxfp8_e4m3:swizzled=1", "mxfp8_e5m2"},
    {"fp8_block1x128_e4m3", "fp8_block128x128_e4m3"},
    {"fp8_block1x128_e5m2", "fp8_block1x128_e4m3"},
    {"fp8_block1x128_e4m3:force_pow_2_scales=0", "fp8_block128x128_e4m3"},
    {"nvfp4", "nvfp4"},
    {"nvfp4:row_scaled=1", "nvfp4_2d"},
    {"nvfp4:four_over_six=mae", "nvfp4:swizzled=1"},
};
struct Sizes {
  std::int64_t rows, cols, length;
};
// Lengths of less than a block, one block and several blocks, and a result that all threads share.
// Codes of 8 bits also allow odd sizes.
constexpr Sizes kSizes[] = {{6, 4, 2}, {2, 34, 16}, {66, 18, 130}, {34, 130, 258}};
constexpr Sizes kOddSizes[] = {{1, 1, 1}, {1, 3, 32}, {5, 129, 33}, {67, 1, 129}};

void ExpectWithinBound(const Pair& pair, const Sizes& sizes, Random& random) {
  const auto& [m, n, k] = sizes;
  SCOPED_TRACE(std::string(pair.a) + " x " + pair.b + ", " + std::to_string(m) + " " +
               std::to_string(n) + " " + std::to_string(k));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    ExpectWithinBound(Make(pair.a, m, k, random), Make(pair.b, n, k, random), GemmLayout::kTN,
                      dtype);
    ExpectWithinBound(Make(pair.a, m, k, random), Make(pair.b, k, n, random), GemmLayout::kNN,
                      dtype);
    ExpectWithinBound(Make(pair.a, k, m, random), Make(pair.b, k, n, random), GemmLayout::kNT,
                      dtype);
  }
}

TEST(FastGemmTest, IsWithinTheBoundOfOneSumAndOneRounding) {
  NF_NEEDS_ONEDNN();
  Random random(20);
  for (const Pair& pair : kPairs) {
    for (const Sizes& sizes : kSizes) ExpectWithinBound(pair, sizes, random);
    if (ParseQuantSpec(pair.a).scheme->element_bits < 8) continue;
    for (const Sizes& sizes : kOddSizes) ExpectWithinBound(pair, sizes, random);
  }
}

TEST(FastGemmTest, ResultsNeedNoAlignment) {
  NF_NEEDS_ONEDNN();
  Random random(22);
  for (const Pair& pair : kPairs) {
    const Quantized a = Make(pair.a, 64, 128, random), b = Make(pair.b, 32, 128, random);
    const auto expected = Product(a, b, GemmLayout::kTN, GemmMode::kFast);
    std::vector<std::byte> out(expected.size() + 1);
    Qgemm(a.view, b.view, {out.data() + 1, DType::kFloat32, {64, 32}, {}, {}},
          {.mode = GemmMode::kFast});
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + 1))
        << pair.a << " x " << pair.b;
  }
}

TEST(FastGemmTest, ScalesAtBothEndsStayWithinTheBound) {
  NF_NEEDS_ONEDNN();
  Random random(21);
  // Least and largest exponent codes of a's and b's scales: at one end for a, at both ends, or
  // spread over large parts of the range.
  const int ranges[][4] = {{0, 10, 120, 127},  {244, 254, 100, 127}, {0, 10, 244, 254},
                           {0, 60, 200, 254},  {40, 127, 60, 127},   {0, 254, 120, 130},
                           {30, 150, 30, 150}, {0, 0, 254, 254}};
  for (const auto& range : ranges) {
    SCOPED_TRACE(range[0]);
    Quantized a = Make("mxfp8_e4m3", 20, 160, random), b = Make("mxfp8_e5m2", 12, 160, random);
    for (int side = 0; side < 2; ++side) {
      const int* bounds = range + std::ptrdiff_t{2} * side;
      std::uniform_int_distribution<int> code(bounds[0], bounds[1]);
      for (std::byte& scale : (side == 0 ? a : b).Bytes(Role::kRowwiseScaleInv))
        scale = static_cast<std::byte>(code(random));
    }
    ExpectWithinBound(Multiply(a, b, GemmLayout::kTN),
                      Product(a, b, GemmLayout::kTN, GemmMode::kFast), DType::kFloat32);
  }
}

TEST(FastGemmTest, NumbersThatAreNotFiniteComeWhereTheReproducibleProductHasThem) {
  NF_NEEDS_ONEDNN();
  Random random(22);
  for (const Pair& pair : {Pair{"fp8_e5m2", "fp8_e4m3"}, Pair{"mxfp8_e5m2", "mxfp8_e4m3"},
                           Pair{"fp8_block1x128_e5m2", "fp8_block1x128_e4m3"}}) {
    SCOPED_TRACE(pair.a);
    Quantized a = Make(pair.a, 40, 256, random), b = Make(pair.b, 24, 256, random);
    a.Bytes(Role::kRowwiseData)[5] = std::byte{0x7C};        // infinity, row 0
    a.Bytes(Role::kRowwiseData)[256 + 7] = std::byte{0x7F};  // NaN, row 1
    a.Bytes(Role::kRowwiseData)[512 + 9] = std::byte{0xFC};  // infinities of both signs, row 2
    a.Bytes(Role::kRowwiseData)[512 + 10] = std::byte{0x7C};
    b.Bytes(Role::kRowwiseData)[256 + 5] = std::byte{0};     // infinity times 0
    b.Bytes(Role::kRowwiseData)[512 + 3] = std::byte{0x7F};  // NaN, column 2
    const auto want = Product(a, b, GemmLayout::kTN, GemmMode::kReproducible);
    const auto got = Product(a, b, GemmLayout::kTN, GemmMode::kFast);
    for (std::size_t i = 0; i < want.size() / sizeof(float); ++i) {
      const float w = Item(DType::kFloat32, want.data(), i);
      const float g = Item(DType::kFloat32, got.data(), i);
      EXPECT_EQ(std::isnan(w), std::isnan(g)) << i;
      if (std::isinf(w) || std::isinf(g)) {
        EXPECT_EQ(w, g) << i;
      }
    }
  }
}

TEST(FastGemmTest, TermsAndPlacesOfTheResultAreThoseOfTheReproducibleProduct) {
  NF_NEEDS_ONEDNN();
  // Sums of the decoded codes are exact, so that both modes give the same bytes.
  Random random(23);
  std::uniform_int_distribution<int> integer(-3, 3);
  const auto integers = [&](std::size_t count) {
    Floats items(count);
    for (float& item : items) item = static_cast<float>(integer(random));
    return items;
  };
  for (const char* spec : {"fp8_e4m3:scale=0.75", "mxfp8_e4m3"}) {
    const Quantized a(spec, {35, 64}, integers(std::size_t{35} * 64)),
        b(spec, {21, 64}, integers(std::size_t{21} * 64));
    Floats bias = integers(21);
    for (const GemmOutput output : {GemmOutput::kOverwrite, GemmOutput::kAccumulate}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        std::vector<std::byte> results[2];
        for (const GemmMode mode : {GemmMode::kReproducible, GemmMode::kFast}) {
          auto& memory = results[mode == GemmMode::kFast];
          memory.assign(std::size_t{35} * 30 * ItemSize(dtype), std::byte{0x3F});
          TensorView out{memory.data(), dtype, {35, 21}, {}, {}};
          out.strides = {static_cast<std::ptrdiff_t>(30 * ItemSize(dtype)),
                         static_cast<std::ptrdiff_t>(ItemSize(dtype))};
          Qgemm(a.view, b.view, out, {.output = output, .bias = ViewOf(bias, {21}), .mode = mode},
                {.threads = 2});
        }
        EXPECT_EQ(results[0], results[1]) << spec;
      }
    }
  }
}

TEST(FastGemmTest, PanelsAndTilesMeet) {
  NF_NEEDS_ONEDNN();
  // Sums are exact, so that both modes give the same bytes. Each operand has several panels, of
  // which the last is incomplete.
  Random random(28);
  std::uniform_int_distribution<int> integer(-3, 3);
  const std::int64_t m = 1300, n = 2090, k = 32;
  const auto make = [&](const char* spec, std::int64_t rows, std::int64_t cols) {
    Floats items(static_cast<std::size_t>(rows * cols));
    for (float& item : items) item = static_cast<float>(integer(random));
    return Quantized(BothOf(spec, rows), {rows, cols}, std::move(items));
  };
  for (const char* spec : {"fp8_e4m3:scale=0.75", "mxfp8_e4m3", "mxfp8_2d_e4m3",
                           "fp8_block1x128_e4m3", "fp8_block128x128_e4m3"}) {
    SCOPED_TRACE(spec);
    const Quantized x = make(spec, m, k), w = make(spec, n, k), t = make(spec, k, n),
                    dy = make(spec, k, m);
    for (const auto& [a, b, layout] :
         {std::tuple{&x, &w, GemmLayout::kTN}, std::tuple{&w, &x, GemmLayout::kTN},
          std::tuple{&x, &t, GemmLayout::kNN}, std::tuple{&dy, &t, GemmLayout::kNT}}) {
      const auto want = Product(*a, *b, layout, GemmMode::kReproducible);
      EXPECT_EQ(Product(*a, *b, layout, GemmMode::kFast), want);
      EXPECT_EQ(Product(*a, *b, layout, GemmMode::kFast, DType::kFloat32, 1), want);
    }
  }
}

TEST(FastGemmTest, RunsGiveTheSameBytes) {
  NF_NEEDS_ONEDNN();
  Random random(24);
  const Quantized a = Make("nvfp4", 96, 512, random), b = Make("nvfp4", 80, 512, random);
  const auto first = Product(a, b, GemmLayout::kTN, GemmMode::kFast, DType::kFloat32, 2);
  EXPECT_NE(first, Product(a, b, GemmLayout::kTN, GemmMode::kReproducible)) << "another order";
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(Product(a, b, GemmLayout::kTN, GemmMode::kFast, DType::kFloat32, 2), first);
}

TEST(FastGemmTest, GroupsAreThoseOfSingleCalls) {
  NF_NEEDS_ONEDNN();
  Random random(25);
  const Quantized a = Make("mxfp8_e4m3", 40, 64, random), b = Make("mxfp8_e4m3", 32, 64, random);
  Quantized far = Make("mxfp8_e4m3", 8, 64, random);  // does not expand: uses kReproducible
  for (std::byte& scale : far.Bytes(Role::kRowwiseScaleInv)) scale = std::byte{254};
  far.Bytes(Role::kRowwiseScaleInv)[0] = std::byte{1};
  std::vector<std::byte> outs[2] = {std::vector<std::byte>(std::size_t{40} * 32 * 4),
                                    std::vector<std::byte>(std::size_t{8} * 32 * 4)};
  const ConstQuantizedView as[] = {a.view, far.view}, bs[] = {b.view, b.view};
  const TensorView views[] = {{outs[0].data(), DType::kFloat32, {40, 32}, {}, {}},
                              {outs[1].data(), DType::kFloat32, {8, 32}, {}, {}}};
  GroupedQgemm(as, bs, views, {.mode = GemmMode::kFast});
  EXPECT_EQ(outs[0], Product(a, b, GemmLayout::kTN, GemmMode::kFast));
  EXPECT_EQ(outs[1], Product(far, b, GemmLayout::kTN, GemmMode::kReproducible));
}

TEST(FastGemmTest, GroupsOfOneRowAreThoseOfSingleCalls) {
  NF_NEEDS_ONEDNN();
  Random random(29);
  const Quantized one = Make("mxfp8_e4m3", 1, 64, random), w = Make("mxfp8_e4m3", 48, 64, random);
  std::vector<std::byte> out(std::size_t{48} * 4);
  const TensorView view{out.data(), DType::kFloat32, {1, 48}, {std::ptrdiff_t{48} * 4, 4}, {}};
  const ConstQuantizedView a = one.view, b = w.view;
  GroupedQgemm({&a, 1}, {&b, 1}, {&view, 1}, {.mode = GemmMode::kFast});
  EXPECT_EQ(out, Product(one, w, GemmLayout::kTN, GemmMode::kFast));
}

TEST(FastGemmTest, AFailureNamesTheOperands) {
  NF_NEEDS_ONEDNN();
  Random random(30);
  const Quantized a = Make("mxfp8_e4m3", 2, 64, random), b = Make("mxfp8_e5m2", 48, 64, random);
  const auto left = MakeGemmOperand(a.view, Direction::kRowwise);
  const auto right = MakeGemmOperand(b.view, Direction::kRowwise);
  Floats out(96);
  const GemmResult result{{reinterpret_cast<std::byte*>(out.data()), 48 * sizeof(float)},
                          DType::kFloat32,
                          false,
                          {},
                          {}};
  const auto plan = PlanExpansion(a.view, Direction::kRowwise, b.view, Direction::kRowwise);
  ASSERT_TRUE(plan);
  const auto multiply = [&] {
    MultiplyExpanded({*left, *right, {}, result}, *plan,
                     [](const BFloat16Product*) { return "out of memory"; }, {});
  };
  EXPECT_EQ(MessageOf<DeviceError>(multiply),
            "qgemm: oneDNN cannot multiply a, mxfp8_e4m3 of shape 2x64, and b, mxfp8_e5m2 of "
            "shape 48x64: out of memory");
}

TEST(FastGemmTest, EmptySumsAreZero) {
  const Quantized a("fp8_e4m3:scale=1", {3, 0}, {}), b("fp8_e4m3:scale=1", {2, 0}, {});
  EXPECT_EQ(Product(a, b, GemmLayout::kTN, GemmMode::kFast), std::vector<std::byte>(24));
}

// Tests of the expansion without a product.

/// Returns the items of one expanded operand as numbers.
std::vector<double> Items(const OperandExpansion& operand) {
  std::vector<std::byte> bytes(operand.shape.Size() * 2);
  Expand(operand, bytes.data());
  std::vector<double> items;
  for (std::size_t i = 0; i < operand.shape.Size(); ++i)
    items.push_back(LoadItem<BFloat16>(bytes.data(), i));
  return items;
}

template <FloatFormat F>
void ExpectEveryPairIsLossless(const std::string& scheme, int pairs_outside) {
  Quantized a(scheme, {8, 32}, Floats(256)), one(scheme, {1, 32}, Floats(32, 1.0f));
  for (std::uint32_t code = 0; code < 256; ++code)
    a.Bytes(Role::kRowwiseData)[code] = static_cast<std::byte>(code);
  int outside = 0;
  for (int scale = 0; scale < 255; ++scale) {
    std::ranges::fill(a.Bytes(Role::kRowwiseScaleInv), static_cast<std::byte>(scale));
    const auto plan = PlanExpansion(a.view, Direction::kRowwise, one.view, Direction::kRowwise);
    ASSERT_TRUE(plan) << scale;  // a scale that all blocks share can always be a factor
    const std::vector<double> items = Items(plan->a);
    for (std::uint32_t code = 0; code < 256; ++code) {
      const double value = std::ldexp(static_cast<double>(Decode<F>(code)), scale - 127);
      const double item = items[code];
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(item));
        continue;
      }
      EXPECT_EQ(item * plan->a.factors[0], value) << scale << " " << code;
      if (item != 0.0 && std::isfinite(item)) {
        EXPECT_GE(std::abs(item), 0x1p-126);
      }
      const bool leaves = value != 0.0 && (value < 0x1p-126 || value >= 0x1p128);
      outside += code <= F::kMaxCode && leaves ? 1 : 0;
    }
  }
  EXPECT_EQ(outside, pairs_outside) << "pairs that leave bfloat16's normal range without a shift";
}

TEST(ExpansionTest, EveryCodeUnderEveryPowerOfTwoIsLossless) {
  ExpectEveryPairIsLossless<E4M3>("mxfp8_e4m3", 564);
  ExpectEveryPairIsLossless<E5M2>("mxfp8_e5m2", 1009);
}

TEST(ExpansionTest, EveryE2M1CodeUnderEveryE4M3ScaleIsLossless) {
  Quantized a("nvfp4", {256, 16}, Floats(std::size_t{256} * 16, 1.0f)),
      one("nvfp4", {2, 16}, Floats(32, 1.0f));
  for (std::size_t line = 0; line < 256; ++line) {
    for (std::size_t i = 0; i < 8; ++i)
      a.Bytes(Role::kRowwiseData)[line * 8 + i] = static_cast<std::byte>(2 * i | (2 * i + 1) << 4);
    a.Bytes(Role::kRowwiseScaleInv)[line * 4] = static_cast<std::byte>(line);
  }
  const auto plan = PlanExpansion(a.view, Direction::kRowwise, one.view, Direction::kRowwise);
  ASSERT_TRUE(plan);
  const std::vector<double> items = Items(plan->a);
  for (std::uint32_t line = 0; line < 256; ++line) {
    for (std::uint32_t code = 0; code < 16; ++code) {
      const double want = static_cast<double>(Decode<E2M1>(code)) * Decode<E4M3>(line);
      const double item = items[line * 16 + code];
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(item)) << line;
      } else {
        EXPECT_EQ(item, want) << line << " " << code;
      }
    }
  }
}

TEST(ExpansionTest, RefusesWhatBFloat16OrSumsInFp32CannotHold) {
  Random random(26);
  const auto expands = [](const Quantized& a, const Quantized& b) {
    return PlanExpansion(a.view, Direction::kRowwise, b.view, Direction::kRowwise).has_value();
  };
  Quantized a = Make("mxfp8_e4m3", 2, 64, random), b = Make("mxfp8_e4m3", 2, 64, random);
  const auto set = [](Quantized& tensor, int first, int second) {
    auto& scales = tensor.Bytes(Role::kRowwiseScaleInv);
    for (std::size_t line = 0; line < 2; ++line) {  // rows of scales are padded to 4
      scales[4 * line] = static_cast<std::byte>(first);
      scales[4 * line + 1] = static_cast<std::byte>(second);
    }
  };
  EXPECT_TRUE(expands(a, b));
  set(a, 1, 250);
  EXPECT_FALSE(expands(a, b)) << "one operand spans more than bfloat16's range";
  set(a, 60, 160);
  EXPECT_TRUE(expands(a, b));
  set(b, 60, 160);
  EXPECT_FALSE(expands(a, b)) << "products of small items would be subnormal";
  set(b, 127, 127);
  set(a, 5, 153);
  EXPECT_TRUE(expands(a, b)) << "148 binades of one operand";
  set(a, 5, 154);
  EXPECT_FALSE(expands(a, b));
  set(a, 5, 105);
  set(b, 5, 75);
  EXPECT_TRUE(expands(a, b)) << "170 binades together";
  set(b, 5, 76);
  EXPECT_FALSE(expands(a, b));

  const Quantized plain = Make("fp8_block1x128_e4m3:force_pow_2_scales=0", 2, 128, random);
  const Quantized powers = Make("fp8_block1x128_e4m3", 2, 128, random);
  EXPECT_TRUE(expands(powers, powers));
  EXPECT_FALSE(expands(powers, plain)) << "scales that are not powers of two";

  Quantized fp4 = Make("nvfp4", 2, 64, random);
  EXPECT_TRUE(expands(fp4, fp4));
  const float amax = 0x1p120f;
  std::memcpy(fp4.Bytes(Role::kAmaxRowwise).data(), &amax, sizeof amax);
  EXPECT_FALSE(expands(fp4, fp4)) << "scale times amax may overflow where values are decoded";
}

TEST(ExpansionTest, BlocksOfZerosSetNoExponent) {
  Random random(27);
  Floats items = Normal(std::size_t{64} * 64, random);
  std::fill(items.begin(), items.begin() + std::ptrdiff_t{40} * 64, 0.0f);
  const Quantized a(BothOf("mxfp8_e4m3", 64), {64, 64}, items);
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    const auto plan = PlanExpansion(a.view, direction, a.view, direction);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->Factor(), 1.0);
  }
}

TEST(ModeTest, IsNamedOrThatOfTheEnvironment) {
  EXPECT_EQ(FindGemmMode("fast"), GemmMode::kFast);
  EXPECT_EQ(GemmModeName(GemmMode::kReproducible), "reproducible");
  EXPECT_EQ(MessageOf<InvalidArgument>([] { FindGemmMode("quick"); }),
            "qgemm: mode must be 'reproducible' or 'fast', got 'quick'");
  setenv("NF_PRODUCT", "fast", 1);
  EXPECT_EQ(DefaultGemmMode(), GemmMode::kFast);
  setenv("NF_PRODUCT", "quick", 1);
  EXPECT_EQ(MessageOf<InvalidArgument>([] { DefaultGemmMode(); }),
            "qgemm: NF_PRODUCT must be 'reproducible' or 'fast', got 'quick'");
  unsetenv("NF_PRODUCT");
  EXPECT_EQ(DefaultGemmMode(), GemmMode::kReproducible);
}

}  // namespace
}  // namespace narrowfloat
