// SPDX-License-Identifier: Apache-2.0
// Compares the other verbs on device memory with the CPU's scalar kernels, byte for byte.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "narrowfloat/ops/amax.h"
#include "narrowfloat/ops/dbias.h"
#include "narrowfloat/ops/delayed_scale.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/ops/grouped.h"
#include "narrowfloat/ops/hadamard.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/requantize.h"
#include "narrowfloat/ops/swizzle.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/testing.h"
#include "tests/conformance/reference_dequantize.h"
#include "tests/conformance/tensors.h"
#include "tests/cuda/device_tensors.h"
#include "tests/cuda/reference_cases.h"

namespace narrowfloat::conformance {
namespace {

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

/// Compares amaxes of a contiguous tensor, which blocks of threads read in several turns. The
/// largest item is at 40 or more positions.
TEST_F(CudaVerbTest, AmaxOfAdjacentItems) {
  const std::size_t bytes = IsRealDevice() ? std::size_t{32} << 20 : 600'000;
  for (const DType dtype : kDTypes) {
    const std::size_t size = bytes / ItemSize(dtype);
    std::vector<std::size_t> places{size - 1};
    for (std::size_t place = 0; place < size; place += size / 40) places.push_back(place);
    for (const std::size_t shift : {0u, 3u}) {
      LineBytes memory(bytes + 16);
      const TensorView in{memory.data() + shift * ItemSize(dtype),
                          dtype,
                          {1, static_cast<std::int64_t>(size)},
                          {},
                          Device::kCpu};
      for (const std::size_t place : places) {
        std::byte* const item = in.data + place * ItemSize(dtype);
        std::memset(item, 0x3C, ItemSize(dtype));
        FloatTensor expected(DType::kFloat32, {1}), got(DType::kFloat32, {1});
        Amax(in, expected.View(), OnCpu());
        const DeviceTensor device_in(in), device_amax(got.ConstView());
        Amax(device_in.view, device_amax.view);
        device_amax.CopyTo(got.View());
        EXPECT_EQ(Difference(expected, got), "")
            << DTypeName(dtype) << " " << shift << " " << place;
        std::memset(item, 0, ItemSize(dtype));
      }
    }
  }
}

/// Transforms on the CPU and on the device, and compares the items and their amax.
void ExpectTransformed(const FloatTensor& in, std::uint32_t mask, Placement placement) {
  const std::string context =
      fmt::format("{} {} mask {:x} {} {}", DTypeName(in.dtype()), ShapeText(in.shape()), mask,
                  PlacementName(placement), Seed());
  FloatTensor expected(in.dtype(), in.shape()), got(in.dtype(), in.shape(), placement);
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

TEST_F(CudaVerbTest, HadamardTransformAndAmax) {
  std::vector<Shape> shapes{{16, 1}, {16, 15},    {32, 40},  {48, 257},
                            {0, 8},  {2, 16, 34}, {144, 130}};
  if (IsRealDevice()) shapes.push_back({272, 1030});
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : shapes) {
      for (const Range range : kRanges) {
        for (const std::uint32_t mask : {0u, kHadamardSignMask, 0xFFFFu}) {
          const Placement placement = NextPlacement();
          ExpectTransformed(RandomTensor(dtype, shape, random_, range, placement), mask, placement);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

/// Transforms columns of 16 items of one magnitude, for each exponent: sums reach both ends of the
/// type's range. The first 16 rows are positive, the others have random signs. Two adjacent columns
/// have the same exponent.
TEST_F(CudaVerbTest, HadamardTransformOfEachExponent) {
  for (const DType dtype : kDTypes) {
    const int mantissa_bits = dtype == DType::kFloat32 ? 23 : dtype == DType::kBFloat16 ? 7 : 10;
    const std::size_t exponents = dtype == DType::kFloat16 ? 31 : 255, columns = 2 * exponents;
    const int sign_bit = static_cast<int>(ItemSize(dtype)) * 8 - 1;
    const Shape shape{32, static_cast<std::int64_t>(columns)};
    FloatTensor in(dtype, shape);
    for (std::size_t i = 0; i < in.size(); ++i) {
      const auto col = static_cast<std::uint32_t>(i % columns);
      const std::uint32_t mantissa = col % 4 < 2 ? 0u : (1u << mantissa_bits) - 1u;
      const auto sign = i < in.size() / 2 ? 0u : static_cast<std::uint32_t>(random_()) >> 31;
      in.SetBits(i, col / 2 << mantissa_bits | mantissa | sign << sign_bit);
    }
    for (const std::uint32_t mask : {0u, kHadamardSignMask}) {
      ExpectTransformed(in, mask, Placement::kContiguous);
      if (HasFatalFailure()) return;
    }
  }
}

/// Transforms columns whose exponents differ by up to `spread`. For small spreads, sums are exact
/// in binary32 or binary64; for larger ones, kernels compute only bounds of sums. Mantissas are
/// random, or have one bit, so that many sums are halfway between two items. In pairs of opposite
/// items, large values cancel.
TEST_F(CudaVerbTest, HadamardTransformOfExponentsFarApart) {
  const Shape shape{16, IsRealDevice() ? 2050 : 130};
  for (const DType dtype : kDTypes) {
    const int mantissa_bits = dtype == DType::kFloat32 ? 23 : dtype == DType::kBFloat16 ? 7 : 10;
    const std::uint32_t most = dtype == DType::kFloat16 ? 30 : 254;
    const int sign_bit = static_cast<int>(ItemSize(dtype)) * 8 - 1;
    for (const std::uint32_t largest : {most, most * 3 / 5, most / 5}) {
      for (const std::uint32_t spread : {3u, 8u, 10u, 12u, 14u, 16u, 20u, 26u, 40u, 44u, 60u}) {
        for (const bool one_bit : {false, true}) {
          FloatTensor in(dtype, shape);
          const auto cols = static_cast<std::size_t>(shape[1]);
          for (std::size_t i = 0; i < in.size(); ++i) {
            const auto random = random_();
            if (i / cols % 2 == 1 && random % 8 == 0) {
              in.SetBits(i, in.Bits(i - cols) ^ 1u << sign_bit);
              continue;
            }
            const auto below = static_cast<std::uint32_t>(random >> 8) % (spread + 1);
            const std::uint32_t exponent = below < largest ? largest - below : 0;
            const auto bits = static_cast<std::uint32_t>(random >> 32);
            const std::uint32_t mantissa =
                one_bit ? bits % 2 << (mantissa_bits - 1) : bits & ((1u << mantissa_bits) - 1u);
            in.SetBits(i, exponent << mantissa_bits | mantissa | (bits >> 31) << sign_bit);
          }
          ExpectTransformed(in, kHadamardSignMask, Placement::kContiguous);
          if (HasFatalFailure()) return;
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
      EXPECT_EQ(Difference(expected[g], got[g]), "")
          << scheme.name << " group " << g << " " << Seed();
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
        ASSERT_EQ(Difference(expected, got), "")
            << PrintQuantSpec(spec) << " " << ShapeText(shape) << " " << Seed();
        FillRandom(got, random_);  // padding too
        Unswizzle(got.view, expected_back.view, OnCpu());
        DeviceVerbs().Unswizzle(got, back);
        ASSERT_EQ(Difference(expected_back, back), "")
            << PrintQuantSpec(spec) << " " << ShapeText(shape) << " " << Seed();
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
        EXPECT_NE(error, "no error");
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
      ASSERT_EQ(Difference(expected, got), "")
          << scheme.name << " " << ShapeText(shape) << " " << Seed();
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
      ASSERT_EQ(expected, got) << ShapeText(shape) << " " << shift << " " << Seed();
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
        ASSERT_EQ(Difference(history, got_history), "") << ShapeText(shape) << " " << Seed();
        ASSERT_EQ(Difference(scale, got_scale), "") << ShapeText(shape) << " " << Seed();
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

/// The nine leading dimensions cannot be merged: their rows have nine strides.
TEST_F(CudaVerbTest, RefusesRowsWithNineStrides) {
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
