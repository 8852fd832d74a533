// SPDX-License-Identifier: Apache-2.0
// Tests properties that follow from the rules of all schemes, on every backend, and inputs that
// show the limits of these properties.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
const Shape kShape{256, 272};

struct Codes {
  QuantizedBuffers buffers;
  FloatTensor values;  // fp32
};

Codes QuantizedCodes(const FloatTensor& in, const QuantSpec& spec,
                     const KernelTable* backend = nullptr) {
  Codes codes{QuantizedBuffers(spec, in.shape()), FloatTensor(DType::kFloat32, in.shape())};
  const Execution execution{.threads = 2, .kernels = backend};
  Quantize(in.ConstView(), codes.buffers.view, execution);
  Dequantize(codes.buffers.view, codes.values.View(), execution);
  return codes;
}

/// Returns the code of element (row, col) in the only direction of the spec.
std::uint32_t CodeAt(const Codes& codes, std::size_t row, std::size_t col) {
  const QuantizedView& view = codes.buffers.view;
  const SchemeInfo& scheme = *view.spec.scheme;
  const MatrixShape matrix = FlattenShape(view.shape);
  const bool turned = !view.spec.rowwise && scheme.layout.columnwise_transposed;
  const std::size_t item = turned ? col * matrix.rows + row : row * matrix.cols + col;
  const auto bits = static_cast<std::size_t>(scheme.element_bits);
  const std::byte* data = view[view.spec.rowwise ? Role::kRowwiseData : Role::kColumnwiseData].data;
  return std::to_integer<std::uint32_t>(data[item * bits / 8]) >> item * bits % 8 &
         ((1u << bits) - 1);
}

bool SameBytes(const Codes& a, const Codes& b, Role role) {
  const std::size_t bytes = a.buffers.Bytes(role);
  if (b.buffers.Bytes(role) != bytes) return false;
  return bytes == 0 || std::memcmp(a.buffers.Data(role), b.buffers.Data(role), bytes) == 0;
}

std::uint32_t SignOf(DType dtype) {
  return dtype == DType::kFloat32 ? 0x80000000u : 0x8000u;
}

bool IsNan(const FloatTensor& in, std::size_t item) {
  return std::isnan(in.Value(item));
}

/// Returns a tensor whose item (row, col) is the item of `in` at from(row, col).
FloatTensor Permuted(const FloatTensor& in,
                     const std::function<std::size_t(std::size_t, std::size_t)>& from) {
  FloatTensor out(in.dtype(), in.shape());
  const MatrixShape matrix = FlattenShape(in.shape());
  for (std::size_t r = 0; r < matrix.rows; ++r) {
    for (std::size_t c = 0; c < matrix.cols; ++c)
      out.SetBits(r * matrix.cols + c, in.Bits(from(r, c)));
  }
  return out;
}

/// Returns 2^power * x. Requires: the products are exact in the type, as for items near 1.
FloatTensor TimesPower(const FloatTensor& in, int power) {
  FloatTensor out(in.dtype(), in.shape());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto value = static_cast<float>(std::ldexp(in.Value(i), power));
    const auto bits = std::bit_cast<std::uint32_t>(value);
    out.SetBits(i, in.dtype() == DType::kFloat32    ? bits
                   : in.dtype() == DType::kBFloat16 ? bits >> 16
                                                    : Encode<Float16, Overflow::kInfinity>(value));
  }
  return out;
}

/// Returns specs of the scheme in each direction, without options and with each option.
std::vector<QuantSpec> Specs(const SchemeInfo& scheme) {
  std::vector<QuantSpec> specs;
  for (const bool rowwise : {true, false}) {
    const QuantSpec plain{.scheme = &scheme, .rowwise = rowwise, .columnwise = !rowwise};
    specs.push_back(plain);
    const auto add = [&](Option option, auto&& set) {
      if (!scheme.options.Has(option)) return;
      set(specs.emplace_back(plain));
    };
    add(Option::kForcePow2Scales,
        [](QuantSpec& s) { s.force_pow_2_scales = !s.ForcesPow2Scales(); });
    add(Option::kSwizzled, [](QuantSpec& s) { s.swizzled = true; });
    add(Option::kStochasticRounding, [](QuantSpec& s) { s.stochastic_rounding = true; });
    add(Option::kRowScaled, [](QuantSpec& s) { s.row_scaled = true; });
    add(Option::kFourOverSix,
        [](QuantSpec& s) { s.four_over_six = FourOverSix::kMeanSquaredError; });
    add(Option::kFourOverSix, [](QuantSpec& s) {
      s.four_over_six = FourOverSix::kMeanAbsoluteError, s.four_over_six_fast_error = true;
    });
    if (!rowwise) add(Option::kHadamard, [](QuantSpec& s) { s.rht = true; });
  }
  return specs;
}

struct Slot {
  const SchemeInfo* scheme;
  DType dtype;
};

class PropertyTest : public testing::TestWithParam<Slot> {
 protected:
  const SchemeInfo& Scheme() const { return *GetParam().scheme; }

  FloatTensor Random(Range range, const Shape& shape = kShape) {
    FloatTensor in(GetParam().dtype, shape);
    FillWithSpecials(in, random_, range);
    return in;
  }
  static std::string Context(const QuantSpec& spec, const KernelTable* backend) {
    return fmt::format("{} on {}, NF_TEST_SEED={}", PrintQuantSpec(spec), backend->name, RunSeed());
  }

  std::mt19937_64 random_{RunSeed()};
};

/// x and -x have the same amax and scale. Formats have each magnitude with both signs, rounding to
/// nearest is symmetric, and stochastic rounding rounds magnitudes by random bits of the position.
/// The code of NaN has no sign. The transform is left out: its zeros have no sign.
TEST_P(PropertyTest, NegatedItemsHaveTheSameScalesAndNegatedCodes) {
  const FloatTensor in = Random(Range::kAll);
  FloatTensor negated(in.dtype(), in.shape());
  for (std::size_t i = 0; i < in.size(); ++i) negated.SetBits(i, in.Bits(i) ^ SignOf(in.dtype()));
  const auto cols = static_cast<std::size_t>(kShape[1]);
  for (const QuantSpec& spec : Specs(Scheme())) {
    if (spec.rht) continue;
    const std::uint32_t sign = 1u << (spec.scheme->element_bits - 1);
    for (const KernelTable* backend : AvailableKernels()) {
      const Codes plain = QuantizedCodes(in, spec, backend),
                  other = QuantizedCodes(negated, spec, backend);
      for (const Role role : {Role::kRowwiseScaleInv, Role::kColumnwiseScaleInv, Role::kAmaxRowwise,
                              Role::kAmaxColumnwise, Role::kScale})
        EXPECT_TRUE(SameBytes(plain, other, role)) << Context(spec, backend) << RoleName(role);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const std::uint32_t expected =
            CodeAt(plain, i / cols, i % cols) ^ (IsNan(in, i) ? 0u : sign);
        ASSERT_EQ(CodeAt(other, i / cols, i % cols), expected)
            << Context(spec, backend) << ", item " << i;
      }
    }
  }
}

/// A factor of 2^k changes the rounding of no amax, quotient, product or error: codes stay equal,
/// and values become 2^k times as large, for all types of scales. No scale is close to overflow or
/// underflow. Items may be subnormal, but their products with the scale are the same numbers. The
/// transform is left out for fp16, whose subnormal sums are rounded to other digits.
TEST_P(PropertyTest, APowerOfTwoMovesTheScalesAndNoCode) {
  const FloatTensor in = Random(Range::kNear);
  for (const int power : {1, 5}) {
    const FloatTensor scaled = TimesPower(in, power);
    for (const QuantSpec& spec : Specs(Scheme())) {
      if (spec.rht && in.dtype() == DType::kFloat16) continue;
      for (const KernelTable* backend : AvailableKernels()) {
        const Codes plain = QuantizedCodes(in, spec, backend),
                    other = QuantizedCodes(scaled, spec, backend);
        const Role data = spec.rowwise ? Role::kRowwiseData : Role::kColumnwiseData;
        EXPECT_TRUE(SameBytes(plain, other, data)) << Context(spec, backend) << ", 2^" << power;
        EXPECT_EQ(Difference(TimesPower(plain.values, power), other.values), "")
            << Context(spec, backend) << ", 2^" << power;
      }
    }
  }
}

/// All items of a block are multiplied by one number and rounded to nearest: both keep the order.
/// Stochastic rounding may change it, as a test of stochastic_test.cc shows.
TEST_P(PropertyTest, OrderWithinABlockIsKept) {
  const bool whole = Scheme().block == kWholeTensor;
  const Shape shape{static_cast<std::int64_t>(whole ? 24 : Scheme().block.rows),
                    static_cast<std::int64_t>(whole ? 40 : Scheme().block.cols)};
  // Near 1 only: near the largest fp32 numbers a product in NVFP4's decoding overflows to infinity,
  // and a code of 0 decodes to NaN.
  const FloatTensor in = Random(Range::kNear, shape);
  std::vector<std::size_t> order(in.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::sort(order, {}, [&](std::size_t i) { return in.Value(i); });
  for (const QuantSpec& spec : Specs(Scheme())) {
    // Rowwise only: blocks of one row have one item per column, and 4-bit codes need an even number
    // of rows. The transform, which mixes rows, is columnwise.
    if (!spec.rowwise || spec.stochastic_rounding) continue;
    for (const KernelTable* backend : AvailableKernels()) {
      const Codes codes = QuantizedCodes(in, spec, backend);
      for (std::size_t i = 1; i < order.size(); ++i) {
        ASSERT_LE(codes.values.Value(order[i - 1]), codes.values.Value(order[i]))
            << Context(spec, backend) << ", items " << order[i - 1] << " and " << order[i];
      }
    }
  }
}

/// A line, or for square blocks a tile of lines, depends on others only by the tensor's amax, which
/// does not depend on their order. Stochastic rounding is left out, because random bits depend on
/// the position, and the transform, because it mixes the rows of a group.
TEST_P(PropertyTest, LinesInAnotherOrderHaveTheSameCodes) {
  const FloatTensor in = Random(Range::kAll);
  const auto rows = static_cast<std::size_t>(kShape[0]), cols = static_cast<std::size_t>(kShape[1]);
  const std::size_t tile = std::max<std::size_t>(Scheme().block.rows, 1);
  for (const QuantSpec& spec : Specs(Scheme())) {
    if (spec.stochastic_rounding || spec.rht) continue;
    const std::size_t lines = (spec.rowwise ? rows : cols) / tile;
    std::vector<std::size_t> order(spec.rowwise ? rows : cols);
    std::iota(order.begin(), order.end(), 0u);
    std::vector<std::size_t> tiles(lines);
    std::iota(tiles.begin(), tiles.end(), 0u);
    std::ranges::shuffle(tiles, random_);
    for (std::size_t i = 0; i < lines * tile; ++i) order[i] = tiles[i / tile] * tile + i % tile;
    const auto from = [&](std::size_t r, std::size_t c) {
      return spec.rowwise ? order[r] * cols + c : r * cols + order[c];
    };
    const FloatTensor moved = Permuted(in, from);
    for (const KernelTable* backend : AvailableKernels()) {
      const Codes plain = QuantizedCodes(in, spec, backend),
                  other = QuantizedCodes(moved, spec, backend);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const std::size_t source = from(i / cols, i % cols);
        ASSERT_EQ(CodeAt(other, i / cols, i % cols), CodeAt(plain, source / cols, source % cols))
            << Context(spec, backend) << ", item " << i;
      }
      EXPECT_EQ(Difference(Permuted(plain.values, from), other.values), "")
          << Context(spec, backend);
    }
  }
}

/// One call for both directions gives the bytes of two calls for one direction each.
TEST_P(PropertyTest, BothDirectionsAreTheTwoSingleOnes) {
  const FloatTensor in = Random(Range::kAll);
  for (QuantSpec spec : Specs(Scheme())) {
    for (const KernelTable* backend : AvailableKernels()) {
      spec.rowwise = true, spec.columnwise = false;
      if (spec.rht) spec.rht = false;  // rht does not change rowwise codes
      const Codes rowwise = QuantizedCodes(in, spec, backend);
      spec.rowwise = false, spec.columnwise = true;
      const Codes columnwise = QuantizedCodes(in, spec, backend);
      spec.rowwise = true;
      const Codes both = QuantizedCodes(in, spec, backend);
      for (const BufferPlan& buffer : both.buffers.plan()) {
        const Codes& single = rowwise.buffers.Has(buffer.role) ? rowwise : columnwise;
        EXPECT_TRUE(SameBytes(single, both, buffer.role))
            << Context(spec, backend) << " " << RoleName(buffer.role);
      }
    }
  }
}

/// Kinds of scales, which decide what stays equal if values are quantized again: powers of two,
/// other fp32 scales, NVFP4's two levels.
enum class Scales { kPowers, kPlain, kTwoLevels };

Scales ScalesOf(const QuantSpec& spec) {
  if (spec.scheme->layout.scale_type == ScaleType::kE4M3) return Scales::kTwoLevels;
  const bool powers = spec.scheme->layout.scale_type == ScaleType::kE8M0 || spec.ForcesPow2Scales();
  return powers ? Scales::kPowers : Scales::kPlain;
}

/// Returns numbers of [1/4, 8) with both signs: the amaxes of blocks have similar sizes.
FloatTensor Even(DType dtype, std::mt19937_64& random) {
  FloatTensor in(dtype, kShape);
  std::uniform_real_distribution<float> uniform(0.25f, 8.0f);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const float value = random() % 2 == 0 ? uniform(random) : -uniform(random);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    in.SetBits(i, dtype == DType::kFloat32    ? bits
                  : dtype == DType::kBFloat16 ? bits >> 16
                                              : Encode<Float16, Overflow::kInfinity>(value));
  }
  return in;
}

/// Quantizes the decoded values again.
/// Power-of-two scales: values stay equal. The largest item of a block, times the scale, is in
/// (max / 2, max] before it is rounded. If it is rounded to max / 2, the scale doubles, and so do
/// all codes, which are at most max / 2. Otherwise the scale stays equal.
/// Other fp32 scales: codes stay equal. The largest code is max, so the new scale differs by the
/// roundings of 1 / s, max / s, the quotient and the product, together less than 2^-21. A code is
/// at least 2^-5 away from the middle between it and an adjacent code.
/// Two levels, with block scales that are normal in E4M3: codes and block scales stay equal. A
/// block's largest item is within 1/16 of 6 and becomes 6. The new block scale is the old one times
/// 1 + 2^-20, which rounds to the old one. 4over6 may choose another candidate, and is left out.
TEST_P(PropertyTest, QuantizingTheValuesAgainKeepsWhatItsScalesAllow) {
  const FloatTensor in = Even(GetParam().dtype, random_);
  for (const QuantSpec& spec : Specs(Scheme())) {
    if (spec.stochastic_rounding || spec.rht || spec.four_over_six != FourOverSix::kOff) continue;
    const Role data = spec.rowwise ? Role::kRowwiseData : Role::kColumnwiseData;
    const Role scales = spec.rowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
    for (const KernelTable* backend : AvailableKernels()) {
      const Codes once = QuantizedCodes(in, spec, backend),
                  twice = QuantizedCodes(once.values, spec, backend);
      if (ScalesOf(spec) == Scales::kPowers) {
        EXPECT_EQ(Difference(once.values, twice.values), "") << Context(spec, backend);
        continue;
      }
      EXPECT_TRUE(SameBytes(once, twice, data)) << Context(spec, backend);
      if (ScalesOf(spec) != Scales::kTwoLevels) continue;
      EXPECT_TRUE(SameBytes(once, twice, scales)) << Context(spec, backend);
    }
  }
}

/// Every item is slightly more than max / 2. It becomes max / 2 under a scale of 1, and then max
/// under a scale of 2.
TEST_P(PropertyTest, CodesUnderPowersOfTwoMayDoubleWhenQuantizedAgain) {
  for (const QuantSpec& spec : Specs(Scheme())) {
    if (ScalesOf(spec) != Scales::kPowers) continue;
    const float largest = spec.scheme->element == "e4m3"   ? 448.0f
                          : spec.scheme->element == "e5m2" ? 57344.0f
                                                           : 6.0f;
    FloatTensor in(DType::kFloat32, {32, 32});
    for (std::size_t i = 0; i < in.size(); ++i)
      in.SetBits(i, std::bit_cast<std::uint32_t>(largest / 2 * 1.03125f));
    const Codes once = QuantizedCodes(in, spec), twice = QuantizedCodes(once.values, spec);
    EXPECT_EQ(once.values.Value(0), largest / 2) << PrintQuantSpec(spec);
    EXPECT_EQ(Difference(once.values, twice.values), "") << PrintQuantSpec(spec);
    EXPECT_NE(CodeAt(once, 0, 0), CodeAt(twice, 0, 0)) << PrintQuantSpec(spec);
  }
}

std::vector<Slot> Slots() {
  std::vector<Slot> slots;
  for (const SchemeInfo& scheme : kSchemes) {
    for (const DType dtype : kTypes) slots.push_back({&scheme, dtype});
  }
  return slots;
}

INSTANTIATE_TEST_SUITE_P(Registry, PropertyTest, testing::ValuesIn(Slots()), [](const auto& slot) {
  return fmt::format("{}_{}", slot.param.scheme->name, DTypeName(slot.param.dtype));
});

FloatTensor Filled(const Shape& shape, float value) {
  FloatTensor in(DType::kFloat32, shape);
  for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, std::bit_cast<std::uint32_t>(value));
  return in;
}

/// The amax of the values, 448 * (1 / (448 / a)), differs from a, and so does its scale.
TEST(PropertyExceptionTest, PlainScalesMayMoveWhenQuantizedAgain) {
  const QuantSpec spec = ParseQuantSpec("fp8_e4m3");
  const Codes once = QuantizedCodes(Filled({1, 32}, 0x1.2ccp0f), spec),
              twice = QuantizedCodes(once.values, spec);
  EXPECT_EQ(CodeAt(once, 0, 0), CodeAt(twice, 0, 0));
  EXPECT_FALSE(SameBytes(once, twice, Role::kRowwiseScaleInv));
}

/// A block whose scale rounds to 0 in E4M3: all items have code 6 and decode to 0. Source:
/// docs/numerics.md, "NVFP4".
TEST(PropertyExceptionTest, BlocksThatVanishUnderTwoLevelsChangeTheirCodes) {
  const QuantSpec spec = ParseQuantSpec("nvfp4");
  FloatTensor in = Filled({2, 16}, 1e-6f);
  in.SetBits(0, std::bit_cast<std::uint32_t>(1000.0f));
  const Codes once = QuantizedCodes(in, spec), twice = QuantizedCodes(once.values, spec);
  EXPECT_EQ(CodeAt(once, 1, 3), 7u);
  EXPECT_EQ(once.values.Value(16 + 3), 0.0);
  EXPECT_EQ(CodeAt(twice, 1, 3), 0u);
}

}  // namespace
}  // namespace narrowfloat::conformance
