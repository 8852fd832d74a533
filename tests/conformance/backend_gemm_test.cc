// SPDX-License-Identifier: Apache-2.0
// Compares products of every backend's micro-kernels with the reference, byte for byte.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <iterator>
#include <optional>
#include <random>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/cpu/slab_gemm.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

/// Lines of a, lines of b, positions of a line.
struct Sizes {
  std::int64_t m, n, k;
};

// One micro-tile and less; tails of every micro-tile, slab and chunk; several tiles and chunks.
constexpr Sizes kOddSizes[] = {{1, 1, 2},     {3, 5, 16},    {4, 33, 32},  {13, 17, 34},
                               {12, 32, 128}, {25, 66, 130}, {7, 70, 290}, {50, 3, 646}};
constexpr Sizes kLargeSizes[] = {{780, 20, 48}, {200, 130, 258}, {2, 300, 1030}};

struct LayoutCase {
  GemmLayout layout;
  bool a_columnwise, b_columnwise;
};
constexpr LayoutCase kLayouts[] = {
    {GemmLayout::kTN, false, false}, {GemmLayout::kNN, false, true}, {GemmLayout::kNT, true, true}};

/// Contents of the operands.
enum class Content {
  kQuantized,   // quantized values over all exponents, with specials of Range::kNumbers
  kNumbers,     // values near each other: finite sums that round at every step
  kRandomBytes  // any code, NaN and infinity included, under any scale
};

void FillRandomBytes(QuantizedBuffers& buffers, std::mt19937_64& random) {
  for (const BufferPlan& plan : buffers.plan()) {
    std::byte* data = buffers.Data(plan.role);
    for (std::size_t i = 0; i < buffers.Bytes(plan.role); ++i)
      data[i] = static_cast<std::byte>(random());
  }
}

/// Returns an operand of a product: `lines` x `length`, in the direction that the layout reads.
QuantizedBuffers MakeSide(const SchemeInfo& scheme, std::int64_t lines, std::int64_t length,
                          bool columnwise, Content content, std::mt19937_64& random) {
  const Shape shape = columnwise ? Shape{length, lines} : Shape{lines, length};
  QuantSpec spec{.scheme = &scheme, .rowwise = !columnwise, .columnwise = columnwise};
  QuantizedBuffers buffers(spec, shape);
  FloatTensor values(DType::kFloat32, shape);
  FillWithSpecials(values, random, content == Content::kNumbers ? Range::kNear : Range::kNumbers);
  Quantize(values.ConstView(), buffers.view);
  if (content == Content::kRandomBytes) FillRandomBytes(buffers, random);
  return buffers;
}

struct Terms {
  DType out;
  std::optional<DType> bias;
  GemmOutput output;
  SumFunction function = SumFunction::kNone;
  bool keeps_gelu_in = false;
};
constexpr Terms kTerms[] = {
    {DType::kFloat32, {}, GemmOutput::kOverwrite},
    {DType::kBFloat16, DType::kBFloat16, GemmOutput::kOverwrite},
    {DType::kFloat16, DType::kFloat32, GemmOutput::kAccumulate},
    {DType::kBFloat16, DType::kFloat32, GemmOutput::kAccumulate},
    {DType::kFloat32, DType::kFloat16, GemmOutput::kAccumulate},
    {DType::kFloat16, {}, GemmOutput::kOverwrite},
    {DType::kBFloat16, DType::kFloat32, GemmOutput::kOverwrite, SumFunction::kGelu, true},
    {DType::kFloat32, DType::kBFloat16, GemmOutput::kAccumulate, SumFunction::kGelu, true},
    {DType::kFloat16, DType::kFloat16, GemmOutput::kAccumulate, SumFunction::kGelu},
    {DType::kBFloat16, {}, GemmOutput::kAccumulate, SumFunction::kTimesGeluGradient},
    {DType::kFloat16, {}, GemmOutput::kOverwrite, SumFunction::kTimesGeluGradient},
    {DType::kFloat32, DType::kFloat32, GemmOutput::kOverwrite, SumFunction::kTimesGeluGradient},
    {DType::kFloat16, {}, GemmOutput::kOverwrite, SumFunction::kGelu, true},
};

/// Computes one product by the reference and compares every backend and thread count with it.
void ExpectTheReference(const SchemeInfo& a_scheme, const SchemeInfo& b_scheme, const Sizes& sizes,
                        const LayoutCase& layout, Content content, const Terms& terms,
                        std::mt19937_64& random) {
  const QuantizedBuffers a =
      MakeSide(a_scheme, sizes.m, sizes.k, layout.a_columnwise, content, random);
  const QuantizedBuffers b =
      MakeSide(b_scheme, sizes.n, sizes.k, layout.b_columnwise, content, random);
  FloatTensor before(terms.out, {sizes.m, sizes.n}, Placement::kPaddedRows);
  FillWithSpecials(before, random, Range::kNear);
  GemmOptions options{.layout = layout.layout, .output = terms.output};
  FloatTensor bias(terms.bias.value_or(DType::kFloat32), {sizes.n});
  FillWithSpecials(bias, random, Range::kNear);
  if (terms.bias) options.bias = bias.ConstView();
  options.function = terms.function;
  const bool has_points = terms.keeps_gelu_in || terms.function == SumFunction::kTimesGeluGradient;
  FloatTensor points(terms.out, {sizes.m, sizes.n}, Placement::kPaddedRows);
  FillWithSpecials(points, random, content == Content::kNumbers ? Range::kNear : Range::kAll);
  const auto product = [&](const KernelTable& table, int threads) {
    FloatTensor out = before, gelu_in = points;
    GemmOptions own = options;
    if (has_points) own.gelu_in = gelu_in.View();
    Qgemm(a.view, b.view, out.View(), own, {.threads = threads, .kernels = &table});
    EXPECT_TRUE(out.GuardsAreWhole() && gelu_in.GuardsAreWhole()) << table.name;
    return std::pair(std::move(out), std::move(gelu_in));
  };
  const auto expected = product(ScalarKernels(), 1);
  for (const KernelTable* table : AvailableKernels()) {
    for (const int threads : {1, 3}) {
      const auto got = product(*table, threads);
      EXPECT_EQ(Difference(expected.first, got.first) + Difference(expected.second, got.second), "")
          << fmt::format(
                 "{} times {} {}x{}x{} layout {} content {} function {} by {} on {} threads, "
                 "NF_TEST_SEED={}",
                 a_scheme.name, b_scheme.name, sizes.m, sizes.n, sizes.k,
                 static_cast<int>(layout.layout), static_cast<int>(content),
                 static_cast<int>(terms.function), table->name, threads, RunSeed());
    }
  }
}

/// Calls visit(a, b) for every pair of schemes that can be multiplied.
template <class Visit>
void ForEachPair(const Visit& visit) {
  for (const SchemeInfo& a : kSchemes) {
    for (const SchemeInfo& b : kSchemes) {
      if (AreOfOneFamily(a, b)) visit(a, b);
    }
  }
}

TEST(BackendGemmTest, EveryPairAndLayoutOnOddSizes) {
  std::mt19937_64 random(RunSeed());
  std::size_t turn = 0;
  ForEachPair([&](const SchemeInfo& a, const SchemeInfo& b) {
    for (const LayoutCase& layout : kLayouts) {
      for (const Content content :
           {Content::kQuantized, Content::kNumbers, Content::kRandomBytes}) {
        for (const Sizes& sizes : kOddSizes) {
          ExpectTheReference(a, b, sizes, layout, content, kTerms[turn++ % std::size(kTerms)],
                             random);
        }
      }
    }
  });
}

TEST(BackendGemmTest, SeveralTilesAndChunks) {
  std::mt19937_64 random(RunSeed());
  std::size_t turn = 0;
  ForEachPair([&](const SchemeInfo& a, const SchemeInfo& b) {
    const LayoutCase& layout = kLayouts[turn % std::size(kLayouts)];
    const Sizes& sizes = kLargeSizes[turn % std::size(kLargeSizes)];
    ExpectTheReference(a, b, sizes, layout, Content::kNumbers, kTerms[turn % std::size(kTerms)],
                       random);
    ++turn;
  });
}

TEST(BackendGemmTest, FuzzedSizes) {
  std::mt19937_64 random(RunSeed());
  const auto upto = [&](std::uint64_t most) {
    return static_cast<std::int64_t>(1 + random() % (most / 2)) * 2;
  };
  ForEachPair([&](const SchemeInfo& a, const SchemeInfo& b) {
    const Sizes sizes{upto(100), upto(100), upto(700)};
    ExpectTheReference(a, b, sizes, kLayouts[random() % std::size(kLayouts)],
                       static_cast<Content>(random() % 3), kTerms[random() % std::size(kTerms)],
                       random);
  });
}

TEST(BackendGemmTest, GroupsAreTheProductsAlone) {
  // Ragged rows. The panels of all `a` together exceed the 8 MiB that are packed at a time.
  constexpr std::int64_t kRows[] = {5, 0, 130, 1, 700, 64, 2000};
  constexpr std::int64_t kCols = 20, kLength = 2064;
  std::mt19937_64 random(RunSeed());
  for (const char* name : {"fp8_e5m2", "mxfp8_e4m3", "nvfp4"}) {
    const SchemeInfo& scheme = FindScheme(name);
    std::vector<QuantizedBuffers> a, b;
    std::vector<FloatTensor> expected;
    for (const std::int64_t rows : kRows) {
      a.push_back(MakeSide(scheme, rows, kLength, false, Content::kNumbers, random));
      b.push_back(MakeSide(scheme, kCols, kLength, false, Content::kNumbers, random));
      expected.emplace_back(DType::kBFloat16, Shape{rows, kCols});
      Qgemm(a.back().view, b.back().view, expected.back().View());
    }
    for (const KernelTable* table : AvailableKernels()) {
      if (table == &ScalarKernels()) continue;  // the tests above compare it with the other tables
      for (const int threads : {1, 3}) {
        std::vector<FloatTensor> got;
        std::vector<ConstQuantizedView> as, bs;
        std::vector<TensorView> outs;
        for (const std::int64_t rows : kRows)
          got.emplace_back(DType::kBFloat16, Shape{rows, kCols});
        for (std::size_t g = 0; g < got.size(); ++g) {
          as.push_back(a[g].view);
          bs.push_back(b[g].view);
          outs.push_back(got[g].View());
        }
        GroupedQgemm(as, bs, outs, {}, {.threads = threads, .kernels = table});
        for (std::size_t g = 0; g < got.size(); ++g) {
          EXPECT_EQ(Difference(expected[g], got[g]), "")
              << fmt::format("{} group {} by {} on {} threads, NF_TEST_SEED={}", name, g,
                             table->name, threads, RunSeed());
        }
      }
    }
  }
}

TEST(BackendGemmTest, EveryVectorTableHasMicroKernels) {
  for (const KernelTable* table : AvailableKernels()) {
    EXPECT_EQ(table->gemm == nullptr, table == &ScalarKernels()) << table->name;
  }
}

}  // namespace
}  // namespace narrowfloat::conformance
