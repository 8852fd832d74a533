// SPDX-License-Identifier: Apache-2.0
// The verbs on device memory against the CPU's scalar kernels, byte for byte, padding included:
// every scheme, direction, type and option, ragged shapes, strides, odd addresses, special values.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <cstring>
#include <functional>

#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/ops/grouped.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "narrowfloat/tensor/error.h"
#include "tests/conformance/reference_dequantize.h"
#include "tests/conformance/tensors.h"
#include "tests/cuda/device_tensors.h"

namespace narrowfloat::conformance {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const Execution& OnCpu() {
  static const Execution execution{.threads = 1, .kernels = &ScalarKernels()};
  return execution;
}

/// Returns shapes that end inside blocks, words and tiles. A device takes large ones too.
std::vector<Shape> Shapes() {
  std::vector<Shape> shapes{{},         {1},       {1, 1},     {1, 33},        {33, 1},
                            {5, 7},     {6, 10},   {64, 64},   {65, 48},       {0, 64},
                            {64, 0},    {3, 0, 5}, {3, 5, 67}, {2, 3, 34, 34}, {130, 131},
                            {144, 272}, {40, 300}};
  if (IsRealDevice()) {
    for (const Shape& shape :
         {Shape{2304, 64}, Shape{32, 4288}, Shape{1000, 1000}, Shape{512, 2048}, Shape{7, 129, 130},
          Shape{1, 100000}, Shape{100000, 1}})
      shapes.push_back(shape);
  }
  return shapes;
}

/// Returns the placements in turn.
Placement NextPlacement() {
  static std::size_t turn = 0;
  constexpr std::size_t kCount = std::size(kPlacements);
  const std::size_t i = turn++ % (kCount + 1);
  return i < kCount ? kPlacements[i] : Placement::kInsideLine;
}

FloatTensor RandomTensor(DType dtype, const Shape& shape, std::mt19937_64& random,
                         Range range = Range::kAll, Placement placement = Placement::kContiguous) {
  FloatTensor tensor(dtype, shape, placement);
  FillWithSpecials(tensor, random, range);
  return tensor;
}

void FillRandom(QuantizedBuffers& buffers, std::mt19937_64& random) {
  for (const BufferPlan& buffer : buffers.plan()) {
    for (std::size_t i = 0; i < BufferBytes(buffer); ++i)
      buffers.Data(buffer.role)[i] = static_cast<std::byte>(random());
  }
}

std::string Seed() {
  return fmt::format("NF_TEST_SEED={}", RunSeed());
}

template <class F>
std::string MessageOf(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Returns true if packed codes fill their bytes, and the transform's rows its groups.
bool Fits(const QuantSpec& spec, const Shape& shape) {
  const MatrixShape matrix = FlattenShape(shape);
  if (spec.rht && matrix.rows % 16 != 0) return false;
  const bool packed = spec.scheme->element_bits == 4;
  return !packed ||
         ((!spec.rowwise || matrix.cols % 2 == 0) && (!spec.columnwise || matrix.rows % 2 == 0));
}

/// Returns the spec in every direction, compact and swizzled.
std::vector<QuantSpec> DirectionsOf(const QuantSpec& spec) {
  std::vector<QuantSpec> specs;
  for (const bool swizzled : {false, true}) {
    if (swizzled && !spec.scheme->layout.swizzles) continue;
    for (const auto& [rowwise, columnwise] :
         {std::pair{true, false}, {false, true}, {true, true}}) {
      specs.push_back(spec);
      specs.back().rowwise = rowwise;
      specs.back().columnwise = columnwise;
      specs.back().swizzled = swizzled;
    }
  }
  return specs;
}

/// Returns specs of both directions with each option of the scheme.
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
    for (const float amax : {0.0f, 1.0f, 0x1p-126f, 0.3f, 1e30f, kInfinity, NAN})
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
      }
    }
  }
  return specs;
}

/// Quantizes on both, from and to the placement, and compares. `device_spec`: as the device's call
/// has it, if values in device memory replace those of the spec.
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
  const bool wide = GetParam().dtype == DType::kFloat32;
  const std::uint32_t sign = wide ? 0x80000000u : 0x8000u;
  const std::uint32_t infinity = wide                                   ? 0x7F800000u
                                 : GetParam().dtype == DType::kBFloat16 ? 0x7F80u
                                                                        : 0x7C00u;
  for (const std::uint32_t bits :
       {0u, sign, infinity | (infinity & (~infinity + 1u)) >> 1, sign | infinity | 1u, infinity,
        sign | infinity, 1u, sign | 1u, infinity - 1u, sign | (infinity - 1u)}) {
    FloatTensor in(GetParam().dtype, {34, 70});
    for (std::size_t i = 0; i < in.size(); ++i) in.SetBits(i, bits);
    ExpectQuantized(in, {.scheme = GetParam().scheme, .columnwise = true},
                    fmt::format("all items {:x}", bits));
    if (HasFatalFailure()) return;
  }
}

/// Values halfway between codes, and next to them: all mantissas of few bits over some octaves.
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

TEST_P(CudaSchemeTest, NoopWritesNothing) {
  const QuantSpec spec{.scheme = GetParam().scheme, .columnwise = true};
  std::mt19937_64 random(RunSeed());
  const FloatTensor in = RandomTensor(GetParam().dtype, {40, 70}, random);
  const DeviceValue<float> noop(1.0f), not_noop(2.0f);
  const DeviceTensor device_in(in.ConstView());
  const QuantizedBuffers untouched(spec, in.shape());
  QuantizedBuffers got(spec, in.shape());
  const DeviceBuffers device_out(got);
  Quantize(device_in.view, device_out.view, {.noop = noop.Pointer()});
  device_out.CopyTo(got);
  EXPECT_EQ(Difference(untouched, got), "");
  FloatTensor dbias(in.dtype(), {70});
  const FloatTensor dbias_before = dbias;
  const DeviceTensor device_dbias(dbias.ConstView());
  QuantizeDbias(device_in.view, device_out.view, device_dbias.view, {.noop = noop.Pointer()});
  device_out.CopyTo(got), device_dbias.CopyTo(dbias.View());
  QuantizedBuffers cpu_got(spec, in.shape());
  FloatTensor cpu_dbias(in.dtype(), {70});
  Execution cpu = OnCpu();
  const float one = 1.0f;
  cpu.noop = &one;
  QuantizeDbias(in.ConstView(), cpu_got.view, cpu_dbias.View(), cpu);
  EXPECT_EQ(Difference(cpu_got, got), "");
  EXPECT_EQ(Difference(cpu_dbias, dbias), "");
  ExpectQuantized(in, spec, "a flag that is not 1", {.noop = not_noop.Pointer()});
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

/// All codes of a byte in lines of 256, under random scales.
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

class CudaVerbTest : public DeviceTest {
 protected:
  std::mt19937_64 random_{RunSeed()};
};

TEST_F(CudaVerbTest, AmaxAndColumnSums) {
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : Shapes()) {
      for (const Range range : kRanges) {
        const Placement placement = NextPlacement();
        const FloatTensor in = RandomTensor(dtype, shape, random_, range, placement);
        const std::string context = fmt::format("{} {} {} {}", DTypeName(dtype), ShapeText(shape),
                                                PlacementName(placement), Seed());
        const DeviceTensor device_in(in.ConstView());
        FloatTensor expected(DType::kFloat32, {1}), got(DType::kFloat32, {1}, placement);
        Amax(in.ConstView(), expected.View(), OnCpu());
        const DeviceTensor device_amax(got.ConstView());
        Amax(device_in.view, device_amax.view);
        device_amax.CopyTo(got.View());
        ASSERT_EQ(Difference(expected, got), "") << context;

        const Shape cols{shape.empty() ? 1 : shape.back()};
        FloatTensor expected_sums(DType::kFloat32, cols), sums(DType::kFloat32, cols);
        const std::string cpu_error =
            MessageOf([&] { ColumnSums(in.ConstView(), expected_sums.View(), OnCpu()); });
        const DeviceTensor device_sums(sums.ConstView());
        const std::string error = MessageOf([&] { ColumnSums(device_in.view, device_sums.view); });
        ASSERT_EQ(cpu_error, error) << context;
        device_sums.CopyTo(sums.View());
        ASSERT_EQ(Difference(expected_sums, sums), "") << context;
      }
    }
  }
}

TEST_F(CudaVerbTest, HadamardTransformAndAmax) {
  std::vector<Shape> shapes{{16, 1}, {16, 15},    {32, 40},  {48, 257},
                            {0, 8},  {2, 16, 34}, {144, 130}};
  if (IsRealDevice()) shapes.push_back({272, 1030});
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : shapes) {
      for (const Range range : kRanges) {
        for (const std::uint32_t mask : {0u, kHadamardSignMask, 0xFFFFu}) {
          const Placement placement = NextPlacement();
          const FloatTensor in = RandomTensor(dtype, shape, random_, range, placement);
          const std::string context = fmt::format("{} {} {} {}", DTypeName(dtype), ShapeText(shape),
                                                  PlacementName(placement), Seed());
          FloatTensor expected(dtype, shape), got(dtype, shape, placement);
          HadamardTransform(in.ConstView(), expected.View(), mask, OnCpu());
          DeviceVerbs().HadamardTransform(in, got, mask);
          ASSERT_EQ(Difference(expected, got), "") << context;
          FloatTensor expected_amax(DType::kFloat32, {1}), amax(DType::kFloat32, {1}, placement);
          HadamardAmax(in.ConstView(), expected_amax.View(), mask, OnCpu());
          const DeviceTensor device_in(in.ConstView()), device_amax(amax.ConstView());
          HadamardAmax(device_in.view, device_amax.view, mask);
          device_amax.CopyTo(amax.View());
          ASSERT_EQ(Difference(expected_amax, amax), "") << context;
        }
      }
    }
  }
}

TEST_F(CudaVerbTest, GroupedQuantize) {
  const std::vector<std::int64_t> rows{6, 0, 130, 2, 32, 30};
  constexpr std::int64_t kCols = 40;
  for (const Placement placement : {Placement::kContiguous, Placement::kReversedRows}) {
    const FloatTensor in =
        RandomTensor(DType::kBFloat16, {200, kCols}, random_, Range::kAll, placement);
    for (const SchemeInfo& scheme : kSchemes) {
      QuantSpec spec{.scheme = &scheme, .columnwise = true};
      spec.stochastic_rounding = scheme.options.Has(Option::kStochasticRounding);
      std::deque<QuantizedBuffers> expected, got;
      std::deque<DeviceBuffers> device;
      std::vector<QuantizedView> outs, device_outs;
      for (const std::int64_t count : rows) {
        outs.push_back(expected.emplace_back(spec, Shape{count, kCols}).view);
        device_outs.push_back(
            device.emplace_back(got.emplace_back(spec, Shape{count, kCols})).view);
      }
      GroupedQuantize(in.ConstView(), rows, outs, OnCpu());
      const DeviceTensor device_in(in.ConstView());
      GroupedQuantize(device_in.view, rows, device_outs);
      for (std::size_t g = 0; g < rows.size(); ++g) {
        device[g].CopyTo(got[g]);
        EXPECT_EQ(Difference(expected[g], got[g]), "")
            << fmt::format("{} group {} {}", scheme.name, g, Seed());
      }
    }
  }
}

TEST_F(CudaVerbTest, GroupsOfDifferentShapes) {
  const std::vector<Shape> shapes{{6, 40}, {0, 40}, {130, 66}, {2, 32}, {48, 2}, {2, 3, 8}};
  for (const SchemeInfo& scheme : kSchemes) {
    const QuantSpec spec{.scheme = &scheme, .columnwise = true};
    std::deque<FloatTensor> tensors;
    std::deque<DeviceTensor> device_tensors;
    std::deque<QuantizedBuffers> expected, got;
    std::deque<DeviceBuffers> device;
    std::vector<ConstTensorView> ins, device_ins;
    std::vector<QuantizedView> outs, device_outs;
    for (const Shape& shape : shapes) {
      tensors.push_back(RandomTensor(DType::kFloat32, shape, random_));
      ins.push_back(tensors.back().ConstView());
      device_ins.push_back(device_tensors.emplace_back(ins.back()).view);
      outs.push_back(expected.emplace_back(spec, shape).view);
      device_outs.push_back(device.emplace_back(got.emplace_back(spec, shape)).view);
    }
    GroupedQuantize(ins, outs, OnCpu());
    GroupedQuantize(device_ins, device_outs);
    for (std::size_t g = 0; g < shapes.size(); ++g) {
      device[g].CopyTo(got[g]);
      EXPECT_EQ(Difference(expected[g], got[g]), "") << scheme.name << " group " << g << Seed();
    }
  }
}

TEST_F(CudaVerbTest, Requantize) {
  for (const SchemeInfo& from : kSchemes) {
    for (const SchemeInfo& to : kSchemes) {
      for (const bool rowwise : {true, false}) {
        const Shape shape{34, 130};
        const QuantSpec in_spec{.scheme = &from, .rowwise = rowwise, .columnwise = !rowwise};
        const QuantSpec out_spec{.scheme = &to, .columnwise = true};
        QuantizedBuffers in(in_spec, shape), expected(out_spec, shape), got(out_spec, shape);
        Quantize(RandomTensor(DType::kBFloat16, shape, random_).ConstView(), in.view, OnCpu());
        const DType between = kDTypes[random_() % std::size(kDTypes)];
        Requantize(in.view, expected.view, between, OnCpu());
        const DeviceBuffers device_in(in), device_out(got);
        Requantize(device_in.view, device_out.view, between);
        device_out.CopyTo(got);
        ASSERT_EQ(Difference(expected, got), "")
            << fmt::format("{} to {} by {} {}", PrintQuantSpec(in_spec), PrintQuantSpec(out_spec),
                           DTypeName(between), Seed());
      }
    }
  }
}

TEST_F(CudaVerbTest, SwizzleAndUnswizzle) {
  for (const SchemeInfo& scheme : kSchemes) {
    if (!scheme.layout.swizzles) continue;
    for (const Shape& shape : {Shape{2, 34}, Shape{130, 260}, Shape{0, 64}, Shape{3, 50, 34}}) {
      for (QuantSpec spec : DirectionsOf({.scheme = &scheme})) {
        if (spec.swizzled || !Fits(spec, shape)) continue;
        QuantSpec swizzled = spec;
        swizzled.swizzled = true;
        QuantizedBuffers in(spec, shape), expected(swizzled, shape), got(swizzled, shape, 1),
            expected_back(spec, shape), back(spec, shape);
        FillRandom(in, random_);
        Swizzle(in.view, expected.view, OnCpu());
        DeviceVerbs().Swizzle(in, got);
        ASSERT_EQ(Difference(expected, got), "") << PrintQuantSpec(spec) << ShapeText(shape);
        FillRandom(got, random_);  // padding too
        Unswizzle(got.view, expected_back.view, OnCpu());
        DeviceVerbs().Unswizzle(got, back);
        ASSERT_EQ(Difference(expected_back, back), "") << PrintQuantSpec(spec) << ShapeText(shape);
      }
    }
  }
}

TEST_F(CudaVerbTest, BlockScalesToMxfp8) {
  for (const SchemeInfo& scheme : kSchemes) {
    if (!scheme.name.starts_with("fp8_block")) continue;
    for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
      for (const Shape& shape : {Shape{2, 34}, Shape{130, 300}, Shape{300, 140}, Shape{0, 64}}) {
        const QuantSpec spec{.scheme = &scheme, .columnwise = true, .force_pow_2_scales = true};
        QuantizedBuffers in(spec, shape);
        const Role role =
            direction == Direction::kRowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
        for (std::size_t i = 0; i < in.Bytes(role) / sizeof(float); ++i)
          SetItem(in, role, i, (1u + static_cast<std::uint32_t>(random_() % 254)) << 23);
        const Shape scales_shape = Mxfp8ScalesShape(in.view, direction);
        const auto bytes = static_cast<std::size_t>(std::accumulate(
            scales_shape.begin(), scales_shape.end(), std::int64_t{1}, std::multiplies<>()));
        std::vector<std::byte> expected(bytes, std::byte{7}), got(bytes, std::byte{7});
        const auto view_of = [&](std::vector<std::byte>& memory) {
          return TensorView{memory.data(), DType::kUInt8, scales_shape, {}, Device::kCpu};
        };
        BlockScalesToMxfp8(in.view, direction, view_of(expected), OnCpu());
        const DeviceBuffers device_in(in);
        const DeviceTensor device_scales(view_of(got));
        BlockScalesToMxfp8(device_in.view, direction, device_scales.view);
        device_scales.CopyTo(view_of(got));
        ASSERT_EQ(expected, got) << scheme.name << " " << ShapeText(shape) << " " << Seed();
        if (bytes == 0 || FlattenShape(shape).Size() == 0) continue;

        const float three = 3.0f;
        std::memcpy(in.Data(role), &three, sizeof three);
        const std::string cpu_error =
            MessageOf([&] { BlockScalesToMxfp8(in.view, direction, view_of(expected), OnCpu()); });
        const DeviceBuffers device_bad(in);
        std::vector<std::byte> untouched(bytes, std::byte{7});
        const DeviceTensor device_untouched(view_of(untouched));
        const std::string error = MessageOf(
            [&] { BlockScalesToMxfp8(device_bad.view, direction, device_untouched.view); });
        EXPECT_NE(error, "");
        EXPECT_EQ(error, cpu_error);
        EXPECT_THROW(BlockScalesToMxfp8(device_bad.view, direction, device_untouched.view),
                     InvalidArgument);
        device_untouched.CopyTo(view_of(untouched));
        EXPECT_EQ(untouched, std::vector<std::byte>(bytes, std::byte{7}));
      }
    }
  }
}

TEST_F(CudaVerbTest, DeriveColumnwise) {
  for (const SchemeInfo& scheme : kSchemes) {
    if (!DerivesColumnwise(scheme)) continue;
    for (const Shape& shape : Shapes()) {
      const QuantSpec rowwise{.scheme = &scheme};
      const QuantSpec columnwise{.scheme = &scheme, .rowwise = false, .columnwise = true};
      if (!Fits(rowwise, shape) || !Fits(columnwise, shape)) continue;
      const std::size_t misalignment = MisalignmentOf(NextPlacement());
      QuantizedBuffers in(rowwise, shape, misalignment), expected(columnwise, shape),
          got(columnwise, shape, misalignment);
      FillRandom(in, random_);
      DeriveColumnwise(in.view, expected.view, OnCpu());
      const DeviceBuffers device_in(in), device_out(got);
      DeriveColumnwise(device_in.view, device_out.view);
      device_out.CopyTo(got);
      ASSERT_EQ(Difference(expected, got), "") << scheme.name << ShapeText(shape) << Seed();
    }
  }
}

TEST_F(CudaVerbTest, TransposeCodes) {
  std::vector<Shape> shapes{{1, 1}, {1, 33}, {33, 1}, {64, 64}, {130, 67}, {0, 8}, {200, 310}};
  if (IsRealDevice()) shapes.push_back({1025, 2049});
  for (const Shape& shape : shapes) {
    for (const std::size_t shift : {0u, 1u, 4u}) {
      const auto bytes = static_cast<std::size_t>(shape[0] * shape[1]);
      LineBytes in(bytes + shift), expected(bytes + shift), got(bytes + shift);
      for (std::byte& byte : in) byte = static_cast<std::byte>(random_());
      const auto view_of = [&](LineBytes& memory, const Shape& of) {
        return TensorView{memory.data() + shift, DType::kUInt8, of, {}, Device::kCpu};
      };
      const Shape turned{shape[1], shape[0]};
      TransposeCodes(view_of(in, shape), view_of(expected, turned), OnCpu());
      const DeviceTensor device_in(view_of(in, shape)), device_out(view_of(got, turned));
      TransposeCodes(device_in.view, device_out.view);
      device_out.CopyTo(view_of(got, turned));
      ASSERT_EQ(expected, got) << ShapeText(shape) << " " << shift;
    }
  }
}

TEST_F(CudaVerbTest, UpdateDelayedScale) {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{16, 3}, Shape{1024, 2}, Shape{5, 300}, Shape{4, 0}}) {
    for (const AmaxAlgorithm algorithm : {AmaxAlgorithm::kMax, AmaxAlgorithm::kMostRecent}) {
      for (const bool reduces : {false, true}) {
        const Shape cols{shape[1]};
        FloatTensor history = RandomTensor(DType::kFloat32, shape, random_);
        FloatTensor scale = RandomTensor(DType::kFloat32, cols, random_);
        FloatTensor reduced = RandomTensor(DType::kFloat32, cols, random_);
        FloatTensor got_history = history, got_scale = scale;
        const ConstTensorView reduced_view = reduced.ConstView();
        const ConstTensorView* given = reduces ? &reduced_view : nullptr;
        const DelayedScaleRule rule{.fp8_max = 448.0f, .margin = 1.0f, .algorithm = algorithm};
        UpdateDelayedScale(history.View(), scale.View(), rule, given, OnCpu());
        DeviceVerbs().UpdateDelayedScale(got_history.View(), got_scale.View(), rule, given);
        ASSERT_EQ(Difference(history, got_history), "") << ShapeText(shape) << Seed();
        ASSERT_EQ(Difference(scale, got_scale), "") << ShapeText(shape) << Seed();
      }
    }
  }
}

TEST_F(CudaVerbTest, ProductsAreUnsupported) {
  const QuantSpec spec{.scheme = &FindScheme("mxfp8_e4m3")};
  const QuantizedBuffers a(spec, {32, 64}), b(spec, {32, 64});
  const FloatTensor out(DType::kFloat32, {32, 32});
  const DeviceBuffers device_a(a), device_b(b);
  const DeviceTensor device_out(out.ConstView());
  EXPECT_EQ(MessageOf([&] { Qgemm(device_a.view, device_b.view, device_out.view); }),
            "qgemm: products must be of tensors in cpu memory, got cuda memory");
}

TEST_F(CudaVerbTest, RefusesTensorsOfTwoDevices) {
  const QuantSpec spec{.scheme = &FindScheme("mxfp8_e4m3")};
  const FloatTensor in(DType::kFloat32, {32, 64});
  QuantizedBuffers out(spec, {32, 64});
  const DeviceTensor device_in(in.ConstView());
  EXPECT_EQ(MessageOf([&] { Quantize(device_in.view, out.view); }),
            "quantize: all tensors must be in the memory of one device, got rowwise_data in cpu "
            "memory and the input in cuda memory");
}

/// Nine leading dimensions of which no two are evenly spaced.
TEST_F(CudaVerbTest, RefusesRowsOfMoreStridesThanItHas) {
  Shape shape(10, 2);
  std::vector<std::ptrdiff_t> strides(10, 4);
  std::ptrdiff_t step = 24;
  for (std::size_t i = 9; i-- > 0; step *= 3) strides[i] = step;
  std::vector<std::byte> memory(static_cast<std::size_t>(step));
  const DeviceTensor in({memory.data(), DType::kFloat32, shape, strides, Device::kCpu});
  const FloatTensor amax(DType::kFloat32, {1});
  const DeviceTensor device_amax(amax.ConstView());
  EXPECT_EQ(MessageOf([&] { Amax(in.view, device_amax.view); }),
            "cuda: the rows of a tensor must lie by at most 8 strides, got shape "
            "2x2x2x2x2x2x2x2x2x2");
}

}  // namespace
}  // namespace narrowfloat::conformance
