// SPDX-License-Identifier: Apache-2.0
// Tests QuantizeDbias: its codes are those of Quantize, and the order of its sums depends only on
// the shape.
#include "narrowfloat/ops/dbias.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

constexpr std::size_t kStrip = 128;  // docs/numerics.md: sums of 128 rows, then the sum of these

std::size_t Rows(const FloatTensor& in) {
  return FlattenShape(in.shape()).rows;
}
std::size_t Cols(const FloatTensor& in) {
  return FlattenShape(in.shape()).cols;
}

/// Returns the sums before the last rounding. Source: docs/numerics.md, "Sums of columns".
std::vector<float> SumsOf(const FloatTensor& in) {
  std::vector<float> sums(Cols(in), 0.0f);
  for (std::size_t c = 0; c < sums.size(); ++c) {
    for (std::size_t first = 0; first < Rows(in); first += kStrip) {
      float strip = 0.0f;
      for (std::size_t r = first; r < std::min(first + kStrip, Rows(in)); ++r)
        strip += static_cast<float>(in.Value(r * sums.size() + c));
      sums[c] += strip;
    }
  }
  return sums;
}

/// Returns the nearest value of the type, without the library's conversions.
double RoundTo(DType dtype, float sum) {
  if (dtype == DType::kFloat32 || sum == 0.0f || !std::isfinite(sum)) return sum;
  const int digits = dtype == DType::kBFloat16 ? 8 : 11;
  const int lowest = dtype == DType::kBFloat16 ? -133 : -24;  // exponent of the smallest step
  const int exponent = std::max(std::ilogb(sum) + 1 - digits, lowest);
  return std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(sum), -exponent)), exponent);
}

/// Fills `in` with numbers of similar size and both signs: no sum overflows, and many terms cancel.
void FillNear(FloatTensor& in, std::mt19937_64& random) {
  FillWithSpecials(in, random, Range::kNear);
}

struct RunVariant {  // no field may change a byte of the result
  const KernelTable* backend;
  int threads;
  std::size_t workspace;  // percent of DbiasWorkspaceShape
};

std::vector<RunVariant> RunVariants() {
  std::vector<RunVariant> variants;
  for (const KernelTable* backend : AvailableKernels()) {
    for (const int threads : {1, 3}) {
      for (const std::size_t workspace : {100u, 99u, 0u})
        variants.push_back({backend, threads, workspace});
    }
  }
  return variants;
}

/// Returns the workspace of `variant`, filled with NaN, which the result must not depend on.
std::vector<float> Workspace(const RunVariant& variant, const Shape& shape) {
  const std::size_t whole = FlattenShape(DbiasWorkspaceShape(shape)).Size();
  return std::vector<float>(whole * variant.workspace / 100, std::nanf(""));
}

void ExpectAsDocumented(const QuantSpec& spec, const FloatTensor& in, const RunVariant& variant) {
  QuantizedBuffers expected(spec, in.shape()), got(spec, in.shape());
  Quantize(in.ConstView(), expected.view);
  FloatTensor dbias(in.dtype(), {in.shape().back()});
  std::vector<float> workspace = Workspace(variant, in.shape());
  QuantizeDbias(in.ConstView(), got.view, dbias.View(), workspace,
                {.threads = variant.threads, .kernels = variant.backend});
  const std::string context =
      fmt::format("{} of {} {} on {} with {} threads, {} % of the workspace, NF_TEST_SEED={}",
                  PrintQuantSpec(spec), DTypeName(in.dtype()), ShapeText(in.shape()),
                  variant.backend->name, variant.threads, variant.workspace, RunSeed());
  EXPECT_EQ(Difference(expected, got), "") << context;
  EXPECT_TRUE(dbias.GuardsAreWhole()) << context;
  const std::vector<float> sums = SumsOf(in);
  for (std::size_t c = 0; c < sums.size(); ++c)
    ASSERT_EQ(dbias.Value(c), RoundTo(in.dtype(), sums[c])) << context << ", column " << c;
}

TEST(DbiasTest, EverySchemeHasTheDocumentedSumsAndTheCodesOfQuantize) {
  std::mt19937_64 random(RunSeed());
  const std::vector<RunVariant> variants = RunVariants();
  std::size_t turn = 0;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Shape& shape : {Shape{386, 70}, Shape{130, 2200}, Shape{6, 34}}) {
      for (const Placement placement : {Placement::kContiguous, Placement::kPaddedRows}) {
        FloatTensor in(dtype, shape, placement);
        FillNear(in, random);
        for (const SchemeInfo& scheme : kSchemes) {
          for (const bool rowwise : {true, false}) {
            for (const bool columnwise : {true, false}) {
              if (!rowwise && !columnwise) continue;
              const QuantSpec spec{&scheme, rowwise, columnwise};
              ExpectAsDocumented(spec, in, variants[turn++ % variants.size()]);
            }
          }
        }
      }
    }
  }
}

TEST(DbiasTest, NeitherThreadsNorLanesNorWorkspaceNorOptionsMatter) {
  std::mt19937_64 random(RunSeed());
  FloatTensor in(DType::kBFloat16, {400, 192});
  FillNear(in, random);
  for (const char* text :
       {"fp8_e4m3:columnwise=1,scale=16", "mxfp8_e5m2:columnwise=1,swizzled=1",
        "nvfp4:columnwise=1,rht=1,seed=3,stochastic_rounding=1", "nvfp4:row_scaled=1",
        "nvfp4_2d:four_over_six=mae", "fp8_block1x128_e4m3:columnwise=1,rowwise=0"}) {
    for (const RunVariant& variant : RunVariants())
      ExpectAsDocumented(ParseQuantSpec(text), in, variant);
  }
}

/// A strip adds at most 128 items, the first one exactly; then the strips are added. Each item
/// passes through at most d = 127 + strips - 1 roundings of relative size u = 2^-24. By Higham,
/// "Accuracy and Stability", 4.2, the sum differs from the exact sum by at most
/// d u / (1 - d u) * sum|x|. Rounding to a type of p digits adds 2^-p times the sum, or half the
/// smallest step.
TEST(DbiasTest, StaysWithinTheBoundOfItsRoundings) {
  std::mt19937_64 random(RunSeed());
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    FloatTensor in(dtype, {1200, 96});
    FillNear(in, random);
    QuantizedBuffers codes({.scheme = &FindScheme("mxfp8_e4m3")}, in.shape());
    FloatTensor dbias(dtype, {96});
    QuantizeDbias(in.ConstView(), codes.view, dbias.View());
    const double roundings = kStrip - 1 + std::ceil(1200.0 / kStrip) - 1;
    const double gamma = roundings * 0x1p-24 / (1 - roundings * 0x1p-24);
    const int digits = dtype == DType::kFloat32 ? 24 : dtype == DType::kBFloat16 ? 8 : 11;
    for (std::size_t c = 0; c < 96; ++c) {
      double exact = 0, magnitudes = 0;  // in binary64: off by at most 1200 * 2^-52 * magnitudes
      for (std::size_t r = 0; r < 1200; ++r) {
        exact += in.Value(r * 96 + c);
        magnitudes += std::abs(in.Value(r * 96 + c));
      }
      const double summed = gamma * magnitudes + 1200 * 0x1p-52 * magnitudes;
      const double rounded = dtype == DType::kFloat32
                                 ? 0.0
                                 : std::ldexp(std::abs(exact) + summed, -digits) +
                                       (dtype == DType::kFloat16 ? 0x1p-25 : 0x1p-134);
      EXPECT_LE(std::abs(dbias.Value(c) - exact), summed + rounded)
          << DTypeName(dtype) << ", column " << c << ", NF_TEST_SEED=" << RunSeed();
    }
  }
}

TEST(DbiasTest, EmptyTensorsHaveSumsOfZero) {
  for (const SchemeInfo& scheme : kSchemes) {
    const FloatTensor in(DType::kFloat16, {0, 32});
    QuantizedBuffers got({.scheme = &scheme}, in.shape());
    FloatTensor dbias(DType::kFloat16, {32});
    for (std::size_t c = 0; c < 32; ++c) dbias.SetBits(c, 0x3C00);
    QuantizeDbias(in.ConstView(), got.view, dbias.View());
    for (std::size_t c = 0; c < 32; ++c) EXPECT_EQ(dbias.Bits(c), 0u) << scheme.name;
  }
}

TEST(DbiasTest, NanAndInfinityReachTheirColumnsAlone) {
  constexpr std::size_t kCols = 70;  // the last columns do not fill a vector
  for (const bool infinities : {false, true}) {
    FloatTensor in(DType::kBFloat16, {200, kCols});
    for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, 0u);
    in.SetBits(9 * kCols, 0x4200);      // 32, the amax of a tensor without infinities
    in.SetBits(3 * kCols + 5, 0xFFC1);  // a NaN with a sign and a payload
    in.SetBits(130 * kCols + 69, 0x7FFF);
    if (infinities) {
      in.SetBits(150 * kCols + 6, 0x7F80);
      in.SetBits(2 * kCols + 7, 0x7F80);
      in.SetBits(199 * kCols + 7, 0xFF80);
    }
    for (const char* scheme : {"mxfp8_e4m3", "fp8_e4m3", "nvfp4"}) {
      const QuantSpec spec{.scheme = &FindScheme(scheme)};
      QuantizedBuffers codes(spec, in.shape());
      Quantize(in.ConstView(), codes.view);
      for (const RunVariant& variant : RunVariants()) {
        QuantizedBuffers got(spec, in.shape());
        FloatTensor dbias(DType::kBFloat16, {kCols});
        std::vector<float> workspace = Workspace(variant, in.shape());
        QuantizeDbias(in.ConstView(), got.view, dbias.View(), workspace,
                      {.threads = variant.threads, .kernels = variant.backend});
        EXPECT_EQ(Difference(codes, got), "") << scheme << " " << variant.backend->name;
        for (std::size_t c = 0; c < kCols; ++c) {
          std::uint32_t expected = c == 0 ? 0x4200u : c == 5 || c == 69 ? 0x7FC0u : 0u;
          if (infinities && (c == 6 || c == 7)) expected = c == 6 ? 0x7F80u : 0x7FC0u;
          EXPECT_EQ(dbias.Bits(c), expected)
              << scheme << " " << variant.backend->name << ", column " << c;
        }
      }
    }
  }
}

std::string ErrorOf(const ConstTensorView& in, const QuantizedView& out, const TensorView& dbias,
                    std::span<float> workspace) {
  return MessageOf<InvalidArgument>([&] { QuantizeDbias(in, out, dbias, workspace); });
}

TEST(DbiasTest, RefusesBuffersThatOverlap) {
  FloatTensor in(DType::kFloat32, {4, 32}), dbias(DType::kFloat32, {32});
  QuantizedBuffers out({.scheme = &FindScheme("mxfp8_e4m3")}, in.shape());
  const TensorView over_codes{out.Data(Role::kRowwiseData), DType::kFloat32, {32}, {}};
  EXPECT_EQ(ErrorOf(in.ConstView(), out.view, over_codes, {}),
            "quantize_dbias: dbias must not overlap rowwise_data");
  EXPECT_EQ(ErrorOf(in.ConstView(), out.view, in.View(), {}),
            "quantize_dbias: dbias must be contiguous float32 of shape 32, got float32 of shape "
            "4x32");
  const TensorView over_input{in.View().data, DType::kFloat32, {32}, {}};
  EXPECT_EQ(ErrorOf(in.ConstView(), out.view, over_input, {}),
            "quantize_dbias: dbias must not overlap the input");
  alignas(float) std::byte memory[32 * sizeof(float)];
  const TensorView in_workspace{memory, DType::kFloat32, {32}, {}};
  EXPECT_EQ(ErrorOf(in.ConstView(), out.view, in_workspace, {reinterpret_cast<float*>(memory), 32}),
            "quantize_dbias: the workspace must not overlap dbias");
  EXPECT_EQ(ErrorOf(in.ConstView(), out.view, dbias.View(), {}), "no error");
}

TEST(DbiasTest, ColumnSumsAreTheDocumentedOnesOnEveryBackend) {
  std::mt19937_64 random(RunSeed());
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const Shape& shape :
         {Shape{386, 70}, Shape{130, 2200}, Shape{3, 2, 33}, Shape{1, 1}, Shape{0, 5}}) {
      for (const Placement placement : {Placement::kContiguous, Placement::kPaddedRows}) {
        FloatTensor in(dtype, shape, placement);
        FillNear(in, random);
        const std::vector<float> expected = SumsOf(in);
        for (const KernelTable* backend : AvailableKernels()) {
          for (const int threads : {1, 3}) {
            FloatTensor sums(DType::kFloat32, {shape.back()});
            for (std::size_t c = 0; c < Cols(in); ++c) sums.SetBits(c, 0x7FC00000);
            ColumnSums(in.ConstView(), sums.View(), {.threads = threads, .kernels = backend});
            EXPECT_TRUE(sums.GuardsAreWhole());
            for (std::size_t c = 0; c < Cols(in); ++c) {
              ASSERT_EQ(sums.Value(c), expected[c])
                  << DTypeName(dtype) << " " << ShapeText(shape) << " on " << backend->name
                  << ", column " << c << ", NF_TEST_SEED=" << RunSeed();
            }
          }
        }
      }
    }
  }
}

TEST(DbiasTest, ColumnSumsNeedFloat32OfTheirOwn) {
  const auto error_of = [](const ConstTensorView& in, const TensorView& sums) {
    return MessageOf<InvalidArgument>([&] { ColumnSums(in, sums); });
  };
  FloatTensor in(DType::kFloat32, {4, 32}), narrow(DType::kBFloat16, {32});
  EXPECT_EQ(error_of(in.ConstView(), narrow.View()),
            "column_sums: the output must be contiguous float32 of shape 32, got bfloat16 of shape "
            "32");
  EXPECT_EQ(error_of(in.ConstView(), {in.View().data, DType::kFloat32, {32}, {}}),
            "column_sums: the output must not overlap the input");
}

TEST(DbiasTest, WorkspaceIsARowOfSumsForEachStrip) {
  EXPECT_EQ(DbiasWorkspaceShape({129, 40}), (Shape{2, 40}));
  EXPECT_EQ(DbiasWorkspaceShape({2, 64, 40}), (Shape{1, 40}));
  EXPECT_EQ(DbiasWorkspaceShape({0, 40}), (Shape{0, 40}));
}

}  // namespace
}  // namespace narrowfloat::conformance
