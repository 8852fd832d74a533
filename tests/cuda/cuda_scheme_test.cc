// SPDX-License-Identifier: Apache-2.0
// Compares schemes on device memory with the CPU's scalar kernels, byte for byte, padding included:
// every direction, type and option, ragged shapes, strides, odd addresses, special values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/tensor/testing.h"
#include "tests/conformance/reference_dequantize.h"
#include "tests/conformance/tensors.h"
#include "tests/cuda/device_tensors.h"
#include "tests/cuda/reference_cases.h"

namespace narrowfloat::conformance {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Returns specs with each option of the scheme. Most have both directions.
std::vector<QuantSpec> OptionSpecsOf(const SchemeInfo& scheme) {
  std::vector<QuantSpec> specs;
  const auto add = [&](auto&& set) {
    QuantSpec spec{.scheme = &scheme, .columnwise = true};
    set(spec);
    specs.push_back(spec);
  };
  const auto has = [&](Option option) { return scheme.options.Has(option); };
  if (has(Option::kScale)) {
    for (const float scale : {0.0f, 1.0f, -3.0f, 0x1.8p-140f, 0x1p100f, kInfinity, NAN})
      add([&](QuantSpec& s) { s.scale = scale; });
  }
  if (has(Option::kAmax)) {
    for (const float amax :
         {0.0f, 1.0f, 0x1p-126f, 0.3f, 1e30f, kInfinity, NAN, -1.0f, -1e-38f, -kInfinity})
      add([&](QuantSpec& s) { s.amax = amax; });
  }
  if (has(Option::kAmaxColumnwise)) {
    add([](QuantSpec& s) { s.amax = 0.5f, s.amax_columnwise = 1e30f; });
    add([](QuantSpec& s) { s.amax_columnwise = 2.0f; });
  }
  if (has(Option::kAmaxEpsilon)) {
    for (const float epsilon : {1e-12f, 3.0f, 1e30f})
      add([&](QuantSpec& s) { s.amax_epsilon = epsilon; });
  }
  if (has(Option::kForcePow2Scales)) {
    for (const bool force : {false, true})
      add([&](QuantSpec& s) { s.force_pow_2_scales = force, s.amax_epsilon = 1e-3f; });
  }
  if (has(Option::kHadamard)) {
    add([](QuantSpec& s) { s.rht = true; });
    add([](QuantSpec& s) { s.rht = true, s.rht_sign_mask = 0x8001, s.rowwise = false; });
    add([](QuantSpec& s) { s.rht = s.stochastic_rounding = true, s.amax = 3.0f, s.seed = 5; });
  }
  if (has(Option::kStochasticRounding)) {
    add([](QuantSpec& s) { s.stochastic_rounding = true; });
    add([](QuantSpec& s) {
      s.stochastic_rounding = true, s.seed = 0x123456789ABCDEF0, s.offset = ~std::uint64_t{6};
    });
  }
  if (has(Option::kRowScaled)) {
    add([](QuantSpec& s) { s.row_scaled = true; });
    add([](QuantSpec& s) { s.row_scaled = true, s.columnwise = false; });
    add([](QuantSpec& s) {
      s.row_scaled = true, s.four_over_six = FourOverSix::kMeanSquaredError;
    });
  }
  if (has(Option::kFourOverSix)) {
    for (const auto error : {FourOverSix::kMeanAbsoluteError, FourOverSix::kMeanSquaredError}) {
      for (const bool fast : {false, true}) {
        const auto choose = [&](QuantSpec& s) {
          s.four_over_six = error, s.four_over_six_fast_error = fast;
        };
        add([&](QuantSpec& s) { choose(s), s.e4m3_max = fast ? 448.0f : 256.0f; });
        add([&](QuantSpec& s) { choose(s), s.amax = 0.5f, s.amax_columnwise = 1e30f; });
        add([&](QuantSpec& s) { choose(s), s.amax = 0x1p-125f, s.amax_columnwise = 0x1p127f; });
        add([&](QuantSpec& s) { choose(s), s.amax = s.amax_columnwise = 2.625f; });
        add([&](QuantSpec& s) { choose(s), s.amax = -1e-38f, s.amax_columnwise = -3.0f; });
      }
    }
  }
  return specs;
}

/// Quantizes on the CPU and on the device, in a random placement, and compares the buffers.
/// `device_spec`: the spec of the device's call, if values in device memory replace values of it.
void ExpectQuantized(const FloatTensor& items, const QuantSpec& spec, const std::string& context,
                     const Execution& execution = {},
                     const std::optional<QuantSpec>& device_spec = {}) {
  const Placement placement = NextPlacement();
  FloatTensor in(items.dtype(), items.shape(), placement);
  in.Assign(items);
  QuantizedBuffers expected(spec, in.shape()), got(spec, in.shape(), MisalignmentOf(placement));
  Quantize(in.ConstView(), expected.view, OnCpu());
  const DeviceTensor device_in(in.ConstView());
  DeviceBuffers device_out(got);
  device_out.view.spec = device_spec.value_or(spec);
  Quantize(device_in.view, device_out.view, execution);
  device_out.CopyTo(got);
  ASSERT_EQ(Difference(expected, got), "")
      << fmt::format("{} {} {}, {}; {} {}", PrintQuantSpec(spec), DTypeName(in.dtype()),
                     ShapeText(in.shape()), PlacementName(placement), context, Seed());
}

struct Case {
  const SchemeInfo* scheme;
  DType dtype;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const SchemeInfo& scheme : kSchemes) {
    for (const DType dtype : kDTypes) cases.push_back({&scheme, dtype});
  }
  return cases;
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return fmt::format("{}_{}", info.param.scheme->name, DTypeName(info.param.dtype));
}

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.scheme->name << " " << DTypeName(c.dtype);
}

class CudaSchemeTest : public DeviceTestWith<Case> {};

TEST_P(CudaSchemeTest, QuantizesEveryShape) {
  std::mt19937_64 random(RunSeed());
  for (const Shape& shape : Shapes()) {
    for (const Range range : kRanges) {
      const FloatTensor in = RandomTensor(GetParam().dtype, shape, random, range);
      for (const QuantSpec& spec : DirectionsOf({.scheme = GetParam().scheme})) {
        if (!Fits(spec, shape)) continue;
        ExpectQuantized(in, spec, "");
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CudaSchemeTest, QuantizesWithEveryOption) {
  std::mt19937_64 random(RunSeed());
  std::vector<Shape> shapes{{32, 34}, {48, 290}, {144, 66}, {2, 17, 34}};
  if (IsRealDevice()) shapes.push_back({1040, 1032});
  for (const QuantSpec& spec : OptionSpecsOf(*GetParam().scheme)) {
    for (const Shape& shape : shapes) {
      if (!Fits(spec, shape)) continue;
      for (const Range range : kRanges) {
        ExpectQuantized(RandomTensor(GetParam().dtype, shape, random, range), spec, "");
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CudaSchemeTest, QuantizesItemsOfOneKind) {
  for (const std::uint32_t bits : SpecialPatterns(GetParam().dtype)) {
    FloatTensor in(GetParam().dtype, {34, 70});
    for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, bits);
    ExpectQuantized(in, {.scheme = GetParam().scheme, .columnwise = true},
                    fmt::format("all items {:x}", bits));
    if (HasFatalFailure()) return;
  }
}

/// Quantizes whole tiles without and with one special item, to aligned and to odd addresses.
TEST_P(CudaSchemeTest, QuantizesWholeTiles) {
  std::mt19937_64 random(RunSeed());
  FloatTensor in(GetParam().dtype, {256, 384});
  FillWithSpecials(in, random, Range::kNear);
  for (const bool has_special : {false, true}) {
    if (has_special)
      in.SetBits(std::size_t{39} * 384 + 24, GetParam().dtype == DType::kFloat16    ? 0x7C00u
                                             : GetParam().dtype == DType::kBFloat16 ? 0x7FC0u
                                                                                    : 0x7FC00000u);
    for (const QuantSpec& spec : DirectionsOf({.scheme = GetParam().scheme})) {
      for (const std::size_t misalignment : {std::size_t{0}, std::size_t{1}}) {
        QuantizedBuffers expected(spec, in.shape()), got(spec, in.shape(), misalignment);
        Quantize(in.ConstView(), expected.view, OnCpu());
        const DeviceTensor device_in(in.ConstView());
        DeviceBuffers device_out(got);
        Quantize(device_in.view, device_out.view, {});
        device_out.CopyTo(got);
        ASSERT_EQ(Difference(expected, got), "")
            << fmt::format("{} {}, misaligned by {}; {}", PrintQuantSpec(spec),
                           DTypeName(in.dtype()), misalignment, Seed());
      }
    }
  }
}

/// Quantizes values halfway between codes, and adjacent floats: mantissas of 5 bits in 8 binades.
TEST_P(CudaSchemeTest, QuantizesTies) {
  const int shift = GetParam().dtype == DType::kFloat32    ? 23
                    : GetParam().dtype == DType::kBFloat16 ? 7
                                                           : 10;
  const std::uint32_t one = (GetParam().dtype == DType::kFloat16 ? 15u : 127u) << shift;
  std::mt19937_64 random(RunSeed());
  FloatTensor in(GetParam().dtype, {64, 160});
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto draw = static_cast<std::uint32_t>(random());
    const std::uint32_t mantissa = (draw & 0x1Fu) << (shift - 5);
    const std::uint32_t magnitude =
        one - ((draw >> 5 & 7u) << shift) + mantissa + (draw >> 8 & 3u) - 1u;
    in.SetBits(i, magnitude | (draw >> 31) << (ItemSize(GetParam().dtype) * 8 - 1));
  }
  for (const QuantSpec& spec : DirectionsOf({.scheme = GetParam().scheme})) {
    ExpectQuantized(in, spec, "ties");
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaSchemeTest, ReadsValuesInDeviceMemory) {
  const SchemeInfo& scheme = *GetParam().scheme;
  std::mt19937_64 random(RunSeed());
  const FloatTensor in = RandomTensor(GetParam().dtype, {48, 140}, random, Range::kNear);
  const QuantSpec plain{.scheme = &scheme, .columnwise = true};
  if (scheme.options.Has(Option::kScale)) {
    for (const float value : {0.3f, 0x1p-130f, kInfinity}) {
      const DeviceValue<float> scale(value);
      QuantSpec spec = plain, other = plain;
      spec.scale = value, other.scale = 7.0f;
      ExpectQuantized(in, spec, "scale on the device", {.scale = scale.Pointer()}, other);
      ExpectQuantized(in, spec, "scale on the device alone", {.scale = scale.Pointer()}, plain);
    }
  }
  if (scheme.options.Has(Option::kAmax)) {
    for (const float value : {0.3f, 0.0f, 1e30f}) {
      const DeviceValue<float> amax(value);
      QuantSpec spec = plain, other = plain;
      spec.amax = value, other.amax = 7.0f;
      ExpectQuantized(in, spec, "amax on the device", {.amax = amax.Pointer()}, other);
      ExpectQuantized(in, spec, "amax on the device alone", {.amax = amax.Pointer()}, plain);
    }
  }
  if (scheme.options.Has(Option::kAmaxColumnwise)) {
    const DeviceValue<float> amax(0.5f), amax_columnwise(12.0f);
    QuantSpec spec = plain;
    spec.amax = 0.5f, spec.amax_columnwise = 12.0f;
    ExpectQuantized(in, spec, "amaxes on the device",
                    {.amax = amax.Pointer(), .amax_columnwise = amax_columnwise.Pointer()}, plain);
    spec.four_over_six = FourOverSix::kMeanSquaredError;
    if (scheme.options.Has(Option::kFourOverSix)) {
      QuantSpec other = plain;
      other.four_over_six = spec.four_over_six;
      ExpectQuantized(in, spec, "amaxes on the device",
                      {.amax = amax.Pointer(), .amax_columnwise = amax_columnwise.Pointer()},
                      other);
    }
  }
  if (scheme.options.Has(Option::kStochasticRounding)) {
    struct State {
      std::uint64_t seed, offset;
    };
    const DeviceValue<State> state({0x123456789ABCDEF0, 77});
    QuantSpec spec = plain, other = plain;
    spec.stochastic_rounding = other.stochastic_rounding = true;
    spec.seed = 0x123456789ABCDEF0, spec.offset = 77, other.seed = 5;
    ExpectQuantized(in, spec, "random state on the device", {.random = &state.Pointer()->seed},
                    other);
  }
}

/// Checks that the kernels of each direction and option read the flag.
TEST_P(CudaSchemeTest, NoopWritesNothing) {
  const Shape shape{48, 70};
  std::mt19937_64 random(RunSeed());
  const FloatTensor in = RandomTensor(GetParam().dtype, shape, random);
  const DeviceTensor device_in(in.ConstView());
  const DeviceValue<float> noop(1.0f), not_noop(2.0f);
  std::vector<QuantSpec> specs = DirectionsOf({.scheme = GetParam().scheme});
  for (const QuantSpec& spec : OptionSpecsOf(*GetParam().scheme)) specs.push_back(spec);
  for (const QuantSpec& spec : specs) {
    ASSERT_TRUE(Fits(spec, shape));
    const QuantizedBuffers untouched(spec, shape);
    QuantizedBuffers got(spec, shape);
    const DeviceBuffers device_out(got);
    Quantize(device_in.view, device_out.view, {.noop = noop.Pointer()});
    device_out.CopyTo(got);
    EXPECT_EQ(Difference(untouched, got), "") << PrintQuantSpec(spec);
    ExpectQuantized(in, spec, "a flag that is not 1", {.noop = not_noop.Pointer()});
    if (HasFatalFailure()) return;
  }
}

/// The sums of columns do not depend on the flag.
TEST_P(CudaSchemeTest, NoopWritesOnlyDbias) {
  const QuantSpec spec{.scheme = GetParam().scheme, .columnwise = true};
  std::mt19937_64 random(RunSeed());
  const FloatTensor in = RandomTensor(GetParam().dtype, {40, 70}, random);
  const QuantizedBuffers untouched(spec, in.shape());
  QuantizedBuffers expected(spec, in.shape()), got(spec, in.shape());
  FloatTensor expected_dbias(in.dtype(), {70}), dbias(in.dtype(), {70});
  const float one = 1.0f;
  Execution cpu = OnCpu();
  cpu.noop = &one;
  QuantizeDbias(in.ConstView(), expected.view, expected_dbias.View(), cpu);
  const DeviceValue<float> noop(one);
  const DeviceTensor device_in(in.ConstView()), device_dbias(dbias.ConstView());
  const DeviceBuffers device_out(got);
  QuantizeDbias(device_in.view, device_out.view, device_dbias.view, {.noop = noop.Pointer()});
  device_out.CopyTo(got), device_dbias.CopyTo(dbias.View());
  EXPECT_EQ(Difference(untouched, expected), "");
  EXPECT_EQ(Difference(untouched, got), "");
  EXPECT_EQ(Difference(expected_dbias, dbias), "");
}

TEST_P(CudaSchemeTest, QuantizesDbias) {
  std::mt19937_64 random(RunSeed());
  std::vector<Shape> shapes{{2, 34}, {130, 66}, {258, 4}, {3, 100, 40}, {0, 8}, {8, 0}};
  if (IsRealDevice()) shapes.push_back({2050, 1030});
  for (const Shape& shape : shapes) {
    for (const Range range : {Range::kAll, Range::kNear}) {
      const Placement placement = NextPlacement();
      const FloatTensor in = RandomTensor(GetParam().dtype, shape, random, range, placement);
      const QuantSpec spec{.scheme = GetParam().scheme, .columnwise = true};
      QuantizedBuffers expected(spec, shape), got(spec, shape);
      const Shape cols{shape.back()};
      FloatTensor expected_dbias(in.dtype(), cols), dbias(in.dtype(), cols);
      QuantizeDbias(in.ConstView(), expected.view, expected_dbias.View(), OnCpu());
      for (const bool given : {false, true}) {
        const DeviceTensor device_in(in.ConstView()), device_dbias(dbias.ConstView());
        const DeviceBuffers device_out(got);
        const FloatTensor workspace(DType::kFloat32, DbiasWorkspaceShape(shape));
        const DeviceTensor device_workspace(workspace.ConstView());
        if (given) {
          const std::span floats(reinterpret_cast<float*>(device_workspace.view.data),
                                 workspace.size());
          QuantizeDbias(device_in.view, device_out.view, device_dbias.view, floats);
        } else {
          QuantizeDbias(device_in.view, device_out.view, device_dbias.view);
        }
        device_out.CopyTo(got), device_dbias.CopyTo(dbias.View());
        const std::string context = fmt::format("{} {} {} {}", GetParam().scheme->name,
                                                ShapeText(shape), PlacementName(placement), Seed());
        ASSERT_EQ(Difference(expected, got), "") << context;
        ASSERT_EQ(Difference(expected_dbias, dbias), "") << context;
      }
    }
  }
}

TEST_P(CudaSchemeTest, Dequantizes) {
  std::mt19937_64 random(RunSeed());
  for (const Shape& shape : Shapes()) {
    for (QuantSpec spec : DirectionsOf({.scheme = GetParam().scheme})) {
      if (!Fits(spec, shape) || (spec.rowwise && spec.columnwise)) continue;
      for (const bool row_scaled : {false, true}) {
        if (row_scaled && !spec.scheme->options.Has(Option::kRowScaled)) continue;
        spec.row_scaled = row_scaled;
        const Placement placement = NextPlacement();
        QuantizedBuffers in(spec, shape, MisalignmentOf(placement));
        FillRandom(in, random);
        FloatTensor expected(GetParam().dtype, shape), got(GetParam().dtype, shape, placement);
        Dequantize(in.view, expected.View(), OnCpu());
        DeviceVerbs().Dequantize(in, got);
        ASSERT_EQ(Difference(expected, got), "")
            << fmt::format("{} {} {}, {} {}", PrintQuantSpec(spec), DTypeName(got.dtype()),
                           ShapeText(shape), PlacementName(placement), Seed());
      }
    }
  }
}

/// Dequantizes lines with all 256 codes, under random scales.
TEST_P(CudaSchemeTest, DequantizesEveryCode) {
  std::mt19937_64 random(RunSeed());
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    const Slot slot{GetParam().scheme, direction, GetParam().dtype};
    QuantizedBuffers in(
        {.scheme = slot.scheme, .rowwise = Rowwise(slot), .columnwise = !Rowwise(slot)},
        {256, 256});
    for (int turn = 0; turn < (IsRealDevice() ? 20 : 2); ++turn) {
      FillRandom(in, random);
      for (std::size_t line = 0; line < 256; ++line) {
        for (std::size_t code = 0; code < 256; ++code)
          SetCode(slot, in, CodePlace(slot, {256, 256}, line, code),
                  static_cast<std::uint32_t>(code));
      }
      FloatTensor expected(slot.dtype, {256, 256}), got(slot.dtype, {256, 256});
      Dequantize(in.view, expected.View(), OnCpu());
      DeviceVerbs().Dequantize(in, got);
      ASSERT_EQ(Difference(expected, got), "") << PrintQuantSpec(in.view.spec) << " " << Seed();
    }
  }
}

TEST_P(CudaSchemeTest, FakeQuantizes) {
  std::mt19937_64 random(RunSeed());
  for (const Shape& shape : {Shape{34, 66}, Shape{3, 10, 130}, Shape{0, 8}, Shape{150, 34}}) {
    for (QuantSpec spec : DirectionsOf({.scheme = GetParam().scheme})) {
      if (spec.swizzled || (spec.rowwise && spec.columnwise)) continue;
      const Placement placement = NextPlacement();
      FloatTensor in = RandomTensor(GetParam().dtype, shape, random, Range::kAll, placement);
      for (const DType out_type : kDTypes) {
        FloatTensor expected(out_type, shape), got(out_type, shape, placement);
        const std::string cpu_error =
            MessageOf([&] { FakeQuantize(in.ConstView(), spec, expected.View(), OnCpu()); });
        const DeviceTensor device_in(in.ConstView()), device_out(got.ConstView());
        const std::string error =
            MessageOf([&] { FakeQuantize(device_in.view, spec, device_out.view); });
        ASSERT_EQ(cpu_error, error);
        device_out.CopyTo(got.View());
        ASSERT_EQ(Difference(expected, got), "")
            << fmt::format("{} {} {}, {} {}", PrintQuantSpec(spec), DTypeName(in.dtype()),
                           ShapeText(shape), PlacementName(placement), Seed());
        if (out_type != in.dtype()) continue;
        FakeQuantize(device_in.view, spec, device_in.view);
        FloatTensor in_place(in.dtype(), shape, placement);
        device_in.CopyTo(in_place.View());
        ASSERT_EQ(Difference(expected, in_place), "") << "in place";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, CudaSchemeTest, testing::ValuesIn(Cases()), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
