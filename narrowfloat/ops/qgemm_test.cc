// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/qgemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "narrowfloat/numerics/gelu.h"
#include "narrowfloat/ops/cpu/slab_gemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/testing.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat {
namespace {

constexpr const char* kBoth = "fp8_e4m3:columnwise=1,scale=1";
const Floats kA{1, 2, 3, 4, 5, 6};                    // 2x3
const Floats kB{1, 0, 2, 0, 1, 1, 3, 0, 0, 1, 1, 1};  // 4x3 or 3x4

Floats Product(const Quantized& a, const Quantized& b, const GemmOptions& options = {}) {
  const Shape shape = QgemmShape(a.view, b.view, options.layout);
  Floats out(FlattenShape(shape).Size(), 100.0f);
  Qgemm(a.view, b.view, ViewOf(out, shape), options);
  return out;
}

TEST(QgemmTest, LayoutsMultiplyWhatTheyName) {
  const Quantized a(kBoth, {2, 3}, kA), b(kBoth, {4, 3}, kB), c(kBoth, {3, 4}, kB),
      d(kBoth, {2, 4}, {1, 0, 2, 0, 1, 1, 3, 0});
  EXPECT_EQ(Product(a, b), (Floats{7, 5, 3, 6, 16, 11, 12, 15}));
  EXPECT_EQ(Product(a, c, {.layout = GemmLayout::kNN}), (Floats{3, 5, 11, 3, 9, 11, 29, 6}));
  EXPECT_EQ(Product(a, d, {.layout = GemmLayout::kNT}),
            (Floats{5, 4, 14, 0, 7, 5, 19, 0, 9, 6, 24, 0}));
}

TEST(QgemmTest, LeadingDimensionsAreFlattened) {
  const Quantized a(kBoth, {1, 2, 3}, kA), b(kBoth, {2, 2, 3}, kB), row(kBoth, {3}, {1, 1, 1});
  EXPECT_EQ(QgemmShape(a.view, b.view, GemmLayout::kTN), (Shape{2, 4}));
  EXPECT_EQ(Product(a, b), (Floats{7, 5, 3, 6, 16, 11, 12, 15}));
  EXPECT_EQ(Product(row, b), (Floats{3, 2, 3, 3}));
  EXPECT_EQ(Product(a, a, {.layout = GemmLayout::kNT}),
            (Floats{17, 22, 27, 22, 29, 36, 27, 36, 45}));
}

TEST(QgemmTest, RowsOfTheResultMayLieAnywhere) {
  const Quantized a(kBoth, {2, 3}, kA), b(kBoth, {4, 3}, kB);
  Floats memory(12, 100.0f);
  TensorView out = ViewOf(memory, {2, 4});
  out.data += 24;
  out.strides = {-24, 4};  // row 0 follows row 1, with two items between them
  Qgemm(a.view, b.view, out, {.output = GemmOutput::kAccumulate});
  EXPECT_EQ(memory, (Floats{116, 111, 112, 115, 100, 100, 107, 105, 103, 106, 100, 100}));
}

TEST(QgemmTest, TermsComeBeforeOrBehindTheRounding) {
  // 257 is between the bfloat16 numbers 256 and 258; the code of 256 is even.
  const Quantized a(kBoth, {1, 2}, {256, 1}), b(kBoth, {1, 2}, {1, 1});
  Floats wide{1.0f};
  std::uint16_t narrow = 0x3F80, out = 0;
  const TensorView result{reinterpret_cast<std::byte*>(&out), DType::kBFloat16, {1, 1}, {}, {}};
  Qgemm(a.view, b.view, result, {.bias = ViewOf(wide, {1})});
  EXPECT_EQ(out, 0x4380) << "256 + 1, rounded";
  const ConstTensorView narrow_bias{
      reinterpret_cast<std::byte*>(&narrow), DType::kBFloat16, {1}, {}, {}};
  Qgemm(a.view, b.view, result, {.bias = narrow_bias});
  EXPECT_EQ(out, 0x4381) << "257 + 1";
  Qgemm(a.view, b.view, result, {.output = GemmOutput::kAccumulate});
  EXPECT_EQ(out, 0x4400) << "256 + 258 is a tie that goes to 512; 257 + 258 would go to 516";
}

TEST(QgemmTest, PackedCodesAddAnyBiasBeforeTheOnlyRounding) {
  // 32 * 6 * 1.5 is 288; 288 + 1 + 1 is a bfloat16 number, 288 + 1 alone rounds to 288.
  for (const char* spec : {"mxfp4", "nvfp4:amax=2688", "nvfp4_2d:amax=2688"}) {
    const Quantized a(spec, {1, 32}, Floats(32, 6.0f)), b(spec, {1, 32}, Floats(32, 1.5f));
    Floats bias{1.0f};
    std::uint16_t out = 0x3F80;
    const TensorView result{reinterpret_cast<std::byte*>(&out), DType::kBFloat16, {1, 1}, {}, {}};
    Qgemm(a.view, b.view, result, {.output = GemmOutput::kAccumulate, .bias = ViewOf(bias, {1})});
    EXPECT_EQ(out, 0x4391) << spec;
  }
}

TEST(QgemmTest, GeluFollowsTheBiasAndComesBeforeWhatAccumulates) {
  const Quantized a(kBoth, {2, 3}, {0.25f, -0.5f, 0.125f, 0, 1, -1}), b(kBoth, {4, 3}, kB);
  const Floats sums = Product(a, b);
  Floats bias{0.5f, -1, 2, 0}, gelu_in(8), out(8, 100.0f), points{-2, -1, 0, 1, 2, 3, -4, 5};
  const TensorView result = ViewOf(out, {2, 4});
  GemmOptions options{.output = GemmOutput::kAccumulate, .bias = ViewOf(bias, {4})};
  options.function = SumFunction::kGelu;
  options.gelu_in = ViewOf(gelu_in, {2, 4});
  Qgemm(a.view, b.view, result, options);
  for (std::size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(gelu_in[i], sums[i] + bias[i % 4]) << i;
    EXPECT_EQ(out[i], 100.0f + Gelu(gelu_in[i])) << i;
  }
  const Floats before = out;
  options.function = SumFunction::kTimesGeluGradient;
  options.gelu_in = ViewOf(points, {2, 4});
  Qgemm(a.view, b.view, result, options);
  for (std::size_t i = 0; i < out.size(); ++i)
    EXPECT_EQ(out[i], before[i] + TimesGeluGradient(gelu_in[i], points[i])) << i;
  EXPECT_EQ(points, (Floats{-2, -1, 0, 1, 2, 3, -4, 5}));
}

TEST(QgemmTest, GeluOfSumsThatAreRoundedOnce) {
  // 257 is between the bfloat16 numbers 256 and 258; GELU is the identity there.
  const Quantized a(kBoth, {1, 2}, {256, 1}), b(kBoth, {1, 2}, {1, 1});
  Floats bias{1.0f};
  std::uint16_t out = 0, gelu_in = 0;
  const TensorView result{reinterpret_cast<std::byte*>(&out), DType::kBFloat16, {1, 1}, {}, {}};
  TensorView kept = result;
  kept.data = reinterpret_cast<std::byte*>(&gelu_in);
  Qgemm(a.view, b.view, result,
        {.bias = ViewOf(bias, {1}), .function = SumFunction::kGelu, .gelu_in = kept});
  EXPECT_EQ(out, 0x4381) << "257 + 1";
  EXPECT_EQ(gelu_in, 0x4381);
}

TEST(QgemmTest, SumsOverNothing) {
  const Quantized a(kBoth, {2, 0}, {}), b(kBoth, {3, 0}, {});
  EXPECT_EQ(Product(a, b), Floats(6, 0.0f));
  Floats bias{1, 2, 3}, out{-0.0f, 1, 2, 3, 4, 5};
  EXPECT_EQ(Product(a, b, {.bias = ViewOf(bias, {3})}), (Floats{1, 2, 3, 1, 2, 3}));
  const TensorView view = ViewOf(out, {2, 3});
  Qgemm(a.view, b.view, view, {.output = GemmOutput::kAccumulate});
  EXPECT_EQ(std::bit_cast<std::uint32_t>(out[0]), 0x80000000u) << "out stays as it is";
  Qgemm(a.view, b.view, view, {.output = GemmOutput::kAccumulate, .bias = ViewOf(bias, {3})});
  EXPECT_EQ(out, (Floats{1, 3, 5, 4, 6, 8}));
  const Quantized no_rows(kBoth, {0, 3}, {}), rows(kBoth, {4, 3}, kB);
  EXPECT_EQ(Product(no_rows, rows), Floats{});
  EXPECT_EQ(Product(rows, no_rows), Floats{});
  Floats kept(6, 7.0f), point{0, 0, 0, 0, 0, 0};
  GemmOptions options{.bias = ViewOf(bias, {3}), .function = SumFunction::kGelu};
  options.gelu_in = ViewOf(kept, {2, 3});
  EXPECT_EQ(Product(a, b, options), (Floats{Gelu(1), Gelu(2), Gelu(3), Gelu(1), Gelu(2), Gelu(3)}));
  EXPECT_EQ(kept, (Floats{1, 2, 3, 1, 2, 3}));
  options.function = SumFunction::kTimesGeluGradient;
  options.gelu_in = ViewOf(point, {2, 3});
  EXPECT_EQ(Product(a, b, options), (Floats{0.5f, 1, 1.5f, 0.5f, 1, 1.5f}));
}

TEST(QgemmTest, NoopWritesNothing) {
  const Quantized a(kBoth, {2, 3}, kA), b(kBoth, {4, 3}, kB);
  Floats out(8, 100.0f);
  const float noop = 1.0f;
  Qgemm(a.view, b.view, ViewOf(out, {2, 4}), {}, {.noop = &noop});
  EXPECT_EQ(out, Floats(8, 100.0f));
}

TEST(QgemmTest, FamiliesAreToldByWhatTheyAre) {
  for (const SchemeInfo& a : kSchemes) {
    for (const SchemeInfo& b : kSchemes) {
      const auto family = [](const SchemeInfo& scheme) {
        return std::string(scheme.name.substr(0, scheme.name.find('_'))) +
               (scheme.name.find("block") != std::string_view::npos ? " of blocks" : "");
      };
      EXPECT_EQ(AreOfOneFamily(a, b), family(a) == family(b)) << a.name << " and " << b.name;
    }
  }
}

TEST(QgemmTest, RulesOfTheFamilies) {
  SchemeInfo tensor{}, rows{}, tiles{}, mx{}, packed{};
  rows.block = {1, 128};
  tiles.block = {128, 128};
  mx.block = {1, 32};
  packed.block = {1, 16};
  mx.layout.scale_type = packed.layout.scale_type = ScaleType::kE8M0;
  for (SchemeInfo* scheme : {&tensor, &rows, &tiles, &mx}) scheme->element_bits = 8;
  packed.element_bits = 4;
  const auto sum = [](const SchemeInfo& a, const SchemeInfo& b) {
    return GemmRuleOf(a, b, DType::kFloat32, {}).sum;
  };
  EXPECT_EQ(sum(tensor, tensor), SlabSum::kBinary64);
  EXPECT_EQ(sum(mx, mx), SlabSum::kBinary64);
  EXPECT_EQ(sum(packed, packed), SlabSum::kBinary64);
  EXPECT_EQ(sum(rows, rows), SlabSum::kFusedLast);
  EXPECT_EQ(sum(rows, tiles), SlabSum::kFusedLast);
  EXPECT_EQ(sum(tiles, rows), SlabSum::kFusedFirst);
  EXPECT_EQ(sum(tiles, tiles), SlabSum::kFusedProduct);

  const DType wide = DType::kFloat32, half = DType::kFloat16, brain = DType::kBFloat16;
  for (const SchemeInfo* scheme : {&tensor, &mx}) {
    EXPECT_EQ(GemmRuleOf(*scheme, *scheme, brain, half).bias, TermRounding::kAfterTerm);
    EXPECT_EQ(GemmRuleOf(*scheme, *scheme, brain, wide).bias, TermRounding::kBeforeTerm);
    EXPECT_EQ(GemmRuleOf(*scheme, *scheme, brain, half).accumulate, TermRounding::kBeforeTerm);
  }
  EXPECT_EQ(GemmRuleOf(rows, tiles, brain, wide).bias, TermRounding::kAfterTerm);
  EXPECT_EQ(GemmRuleOf(rows, tiles, brain, wide).accumulate, TermRounding::kBeforeTerm);
  EXPECT_EQ(GemmRuleOf(packed, packed, brain, {}).accumulate, TermRounding::kAfterTerm);
  EXPECT_EQ(GemmRuleOf(packed, packed, brain, wide).bias, TermRounding::kAfterTerm);
}

TEST(QgemmTest, WrongArgumentsAreNamedAndNothingIsWritten) {
  const Quantized a(kBoth, {2, 3}, kA), b(kBoth, {4, 3}, kB), rowwise("fp8_e5m2", {4, 3}, kB),
      mx("mxfp8_e4m3", {4, 3}, kB);
  Floats out(8, 100.0f), bias(4, 1.0f);
  const TensorView good = ViewOf(out, {2, 4});
  const auto message = [&](const Quantized& right, const TensorView& view,
                           const GemmOptions& options = {}) {
    return MessageOf<InvalidArgument>([&] { Qgemm(a.view, right.view, view, options); });
  };
  EXPECT_EQ(message(mx, good),
            "qgemm: a and b must have elements of one width and scales of one type over blocks of "
            "one length, got fp8_e4m3 and mxfp8_e4m3");
  EXPECT_EQ(message(b, good, {.layout = GemmLayout::kNN}),
            "qgemm: layout NN needs as many columns of a as rows of b, got a of shape 2x3 and b of "
            "shape 4x3");
  const Quantized three("fp8_e5m2", {3, 4}, kB);
  EXPECT_EQ(message(three, good, {.layout = GemmLayout::kNN}),
            "qgemm: layout NN reads columnwise_data of b, which is missing");
  EXPECT_EQ(message(b, ViewOf(out, {4, 2})), "qgemm: out must have shape 2x4, got 4x2");
  EXPECT_EQ(message(b, ViewOf(out, {8})), "qgemm: out must have shape 2x4, got 8");
  TensorView bytes = good;
  bytes.dtype = DType::kUInt8;
  EXPECT_EQ(message(b, bytes), "qgemm: out must be float32, float16 or bfloat16, got uint8");
  EXPECT_EQ(message(b, good, {.bias = ViewOf(bias, {1, 4})}),
            "qgemm: bias must have one item for each column of the result, shape 4, got shape 1x4");
  EXPECT_EQ(message(b, good, {.bias = ViewOf(out, {4})}), "qgemm: out must not overlap bias");
  Floats points(8, 1.0f);
  const TensorView gelu_in = ViewOf(points, {2, 4});
  const auto with = [&](SumFunction function, const TensorView& view) {
    return message(b, good, {.function = function, .gelu_in = view});
  };
  EXPECT_EQ(with(SumFunction::kNone, gelu_in), "qgemm: gelu_in needs gelu");
  EXPECT_EQ(message(b, good, {.function = SumFunction::kTimesGeluGradient}),
            "qgemm: GELU's derivative needs gelu_in");
  EXPECT_EQ(with(SumFunction::kGelu, ViewOf(points, {8})),
            "qgemm: gelu_in must be float32 of shape 2x4 as out is, got float32 of 8");
  TensorView narrow = gelu_in;
  narrow.dtype = DType::kBFloat16;
  EXPECT_EQ(with(SumFunction::kTimesGeluGradient, narrow),
            "qgemm: gelu_in must be float32 of shape 2x4 as out is, got bfloat16 of 2x4");
  EXPECT_EQ(with(SumFunction::kTimesGeluGradient, good), "qgemm: out must not overlap gelu_in");
  EXPECT_EQ(
      message(b, good,
              {.bias = ViewOf(points, {4}), .function = SumFunction::kGelu, .gelu_in = gelu_in}),
      "qgemm: gelu_in must not overlap bias");
  QuantizedView over = rowwise.view;
  over[Role::kRowwiseScaleInv].data = gelu_in.data + 4;
  EXPECT_EQ(MessageOf<InvalidArgument>([&] {
              Qgemm(a.view, over, good, {.function = SumFunction::kGelu, .gelu_in = gelu_in});
            }),
            "qgemm: gelu_in must not overlap rowwise_scale_inv of b");
  EXPECT_EQ(points, Floats(8, 1.0f));
  over = rowwise.view;
  over[Role::kRowwiseScaleInv].data = good.data + 4;
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Qgemm(a.view, over, good); }),
            "qgemm: out must not overlap rowwise_scale_inv of b");
  QuantizedView odd = rowwise.view;
  odd[Role::kRowwiseData].shape = {3, 4};
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Qgemm(a.view, odd, good); }),
            "qgemm: b: rowwise_data must have shape 4x3, got 3x4");
  EXPECT_EQ(MessageOf([] { FindGemmLayout("TT"); }),
            "qgemm: layout must be 'TN', 'NN' or 'NT', got 'TT'");
  EXPECT_EQ(out, Floats(8, 100.0f));
}

TEST(QgemmTest, OperandsNeedOneHadamardTransform) {
  const auto make = [](const char* options) {
    const std::string spec = std::string("nvfp4:columnwise=1") + options;
    return Quantized(spec, {16, 16}, Floats(256, 1.0f));
  };
  const Quantized plain = make(""), turned = make(",rht=1"), other = make(",rht=1,rht_sign_mask=3");
  Floats out(256, 100.0f);
  const TensorView view = ViewOf(out, {16, 16});
  const auto message = [&](const Quantized& a, const Quantized& b, GemmLayout layout) {
    return MessageOf<InvalidArgument>([&] { Qgemm(a.view, b.view, view, {.layout = layout}); });
  };
  EXPECT_EQ(message(turned, plain, GemmLayout::kNT),
            "qgemm: layout NT needs a and b to have gone through the same Hadamard transform, got "
            "rht_sign_mask 55272 of a and no transform of b");
  EXPECT_EQ(message(turned, other, GemmLayout::kNT),
            "qgemm: layout NT needs a and b to have gone through the same Hadamard transform, got "
            "rht_sign_mask 55272 of a and rht_sign_mask 3 of b");
  EXPECT_EQ(message(turned, other, GemmLayout::kNN),
            "qgemm: layout NN needs a and b to have gone through the same Hadamard transform, got "
            "no transform of a and rht_sign_mask 3 of b");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] {
              GroupedQgemm(std::vector<ConstQuantizedView>{plain.view},
                           std::vector<ConstQuantizedView>{other.view}, {&view, 1},
                           {.layout = GemmLayout::kNT});
            }),
            "grouped_qgemm: group 0: layout NT needs a and b to have gone through the same "
            "Hadamard transform, got no transform of a and rht_sign_mask 3 of b");
  EXPECT_EQ(MessageOf<InvalidArgument>(
                [&] { PlanQgemmExpansion(other.view, plain.view, GemmLayout::kNT); }),
            "qgemm: layout NT needs a and b to have gone through the same Hadamard transform, got "
            "rht_sign_mask 3 of a and no transform of b");
  EXPECT_EQ(out, Floats(256, 100.0f));
  const Floats want = Product(plain, plain);  // rows are not transformed
  EXPECT_EQ(Product(turned, other), want);
  EXPECT_EQ(Product(other, plain, {.layout = GemmLayout::kNN}), want);
  EXPECT_EQ(message(other, other, GemmLayout::kNT), "no error");
}

/// The operands and results of a call with several groups.
struct Groups {
  std::vector<ConstQuantizedView> a, b;
  std::vector<TensorView> outs;
};

TEST(GroupedQgemmTest, GroupsOfAnyShapeAreTheProductsAlone) {
  const Quantized a(kBoth, {2, 3}, kA), b(kBoth, {4, 3}, kB), none(kBoth, {0, 3}, {});
  const Quantized long_a(kBoth, {1, 6}, kA), long_b(kBoth, {2, 6}, kB);
  Floats first(8, 1.0f), empty, last(2, 2.0f), zeros(4, 0.0f), ones(2, 1.0f);
  const Groups groups{{a.view, none.view, long_a.view},
                      {b.view, b.view, long_b.view},
                      {ViewOf(first, {2, 4}), ViewOf(empty, {0, 4}), ViewOf(last, {1, 2})}};
  const std::vector<ConstTensorView> biases{ViewOf(zeros, {4}), ViewOf(zeros, {4}),
                                            ViewOf(ones, {2})};
  GroupedQgemm(groups.a, groups.b, groups.outs, {.biases = biases});
  EXPECT_EQ(first, Product(a, b));
  EXPECT_EQ(last, Product(long_a, long_b, {.bias = ViewOf(ones, {2})}));
  GroupedQgemm(groups.a, groups.b, groups.outs, {.output = GemmOutput::kAccumulate});
  EXPECT_EQ(first, (Floats{14, 10, 6, 12, 32, 22, 24, 30}));
  GroupedQgemm({}, {}, {});
}

TEST(GroupedQgemmTest, SumsOverNothingOfOneGroup) {
  const Quantized a(kBoth, {3, 2}, kA), b(kBoth, {3, 4}, kB), no_a(kBoth, {0, 2}, {}),
      no_b(kBoth, {0, 4}, {});
  Floats first(8, 100.0f), second(8, 100.0f);
  const Groups groups{
      {a.view, no_a.view}, {b.view, no_b.view}, {ViewOf(first, {2, 4}), ViewOf(second, {2, 4})}};
  GroupedQgemm(groups.a, groups.b, groups.outs, {.layout = GemmLayout::kNT});
  EXPECT_EQ(first, Product(a, b, {.layout = GemmLayout::kNT}));
  EXPECT_EQ(second, Floats(8, 0.0f));
}

TEST(GroupedQgemmTest, WrongGroupsAreNamedAndNothingIsWritten) {
  const Quantized a(kBoth, {2, 3}, kA), b(kBoth, {4, 3}, kB), wide(kBoth, {3, 4}, kB);
  Floats memory(16, 100.0f);
  const TensorView front = ViewOf(memory, {2, 4});
  TensorView back = front, middle = front;
  back.data += 32;
  middle.data += 4;
  const auto message = [](const Groups& groups) {
    return MessageOf<InvalidArgument>([&] { GroupedQgemm(groups.a, groups.b, groups.outs); });
  };
  EXPECT_EQ(message({{a.view, a.view}, {b.view}, {front, back}}),
            "grouped_qgemm: a, b, out and bias must have one tensor for each group, got 2, 1, 2 "
            "and 0");
  EXPECT_EQ(
      message({{a.view, a.view}, {b.view, wide.view}, {front, back}}),
      "grouped_qgemm: group 1: layout TN needs as many columns of a as columns of b, got a of "
      "shape 2x3 and b of shape 3x4");
  EXPECT_EQ(message({{a.view, a.view}, {b.view, b.view}, {front, middle}}),
            "grouped_qgemm: out of group 1 must not overlap out of group 0");
  QuantizedView over = b.view;
  over[Role::kRowwiseData].data = back.data + 4;
  EXPECT_EQ(message({{a.view, a.view}, {over, b.view}, {front, back}}),
            "grouped_qgemm: out of group 1 must not overlap b of group 0");
  EXPECT_EQ(memory, Floats(16, 100.0f));
}

TEST(QgemmTest, BuffersThatTheLayoutDoesNotReadAreIgnored) {
  const Quantized a(kBoth, {2, 3}, kA), b(kBoth, {4, 3}, kB);
  Floats out(8, 100.0f);
  const TensorView view = ViewOf(out, {2, 4});
  ConstQuantizedView stale = a.view;
  stale[Role::kColumnwiseData] = view;                   // the memory of the result
  stale[Role::kColumnwiseScaleInv].strides = {4, 4, 4};  // more strides than dimensions
  stale[Role::kAmaxRowwise].data = view.data;            // FP8 codes need no amax
  const Floats want = Product(a, b);
  Qgemm(stale, b.view, view);
  EXPECT_EQ(out, want);
  out.assign(8, 100.0f);
  const std::vector<ConstQuantizedView> left{stale}, right{b.view};
  GroupedQgemm(left, right, {&view, 1});
  EXPECT_EQ(out, want);
  stale[Role::kColumnwiseData].device = Device::kCuda;
  Qgemm(stale, b.view, view);
  EXPECT_EQ(out, want);
  stale[Role::kAmaxRowwise].device = Device::kCuda;
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { Qgemm(stale, b.view, view); }),
            "qgemm: all tensors must be in the memory of one device, got out in cpu memory and "
            "amax_rowwise of a in cuda memory");
}

TEST(QgemmTest, AnAmaxThatDecodingNeedsMustNotOverlapTheResult) {
  const Quantized a("nvfp4:amax=2688", {1, 32}, Floats(32, 6.0f));
  Floats out(1, 100.0f);
  ConstQuantizedView over = a.view;
  over[Role::kAmaxRowwise].data = ViewOf(out, {1, 1}).data;
  EXPECT_EQ(MessageOf<InvalidArgument>([&] {
              Qgemm(over, a.view, ViewOf(out, {1, 1}));
            }),
            "qgemm: out must not overlap amax_rowwise of a");
}

}  // namespace
}  // namespace narrowfloat
