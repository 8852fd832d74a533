// SPDX-License-Identifier: Apache-2.0
// Compares dequantizing on every backend, for each scheme, direction and type, with the reference:
// all codes and scales, ragged shapes, outputs of any placement.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "tests/conformance/reference_dequantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

std::vector<Slot> Slots() {
  std::vector<Slot> slots;
  for (const SchemeInfo& scheme : kSchemes) {
    for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
        slots.push_back({&scheme, direction, dtype});
    }
  }
  return slots;
}

std::string NameOf(const testing::TestParamInfo<Slot>& info) {
  const char* direction = info.param.direction == Direction::kRowwise ? "rowwise" : "columnwise";
  return fmt::format("{}_{}_{}", info.param.scheme->name, direction, DTypeName(info.param.dtype));
}

QuantizedBuffers MakeInput(const Slot& slot, const Shape& shape, bool swizzled) {
  return QuantizedBuffers({.scheme = slot.scheme,
                           .rowwise = Rowwise(slot),
                           .columnwise = !Rowwise(slot),
                           .swizzled = swizzled},
                          shape);
}

void ExpectReference(const Slot& slot, const QuantizedBuffers& in, Placement placement) {
  const MatrixShape matrix = FlattenShape(in.view.shape);
  FloatTensor expected(slot.dtype, in.view.shape);
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected.SetBits(i, ReferenceValue(slot, in, i / matrix.cols, i % matrix.cols));
  for (const KernelTable* backend : AvailableKernels()) {
    for (const ExecutionVariant& variant : kExecutionVariants) {
      FloatTensor got(slot.dtype, in.view.shape, placement);
      Dequantize(in.view, got.View(),
                 {.threads = variant.threads, .kernels = backend, .stores = variant.stores});
      ASSERT_EQ(Difference(expected, got), "") << fmt::format(
          "{} {}, {}, on {} with {} threads", PrintQuantSpec(in.view.spec),
          ShapeText(in.view.shape), PlacementName(placement), backend->name, variant.threads);
    }
  }
}

class BackendDequantizeTest : public testing::TestWithParam<Slot> {};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void SetAmaxes(const Slot& slot, QuantizedBuffers& in, float amax) {
  if (!Packed(slot)) return;
  const Role role = Rowwise(slot) ? Role::kAmaxRowwise : Role::kAmaxColumnwise;
  for (std::size_t i = 0; i < in.Bytes(role) / sizeof amax; ++i)
    std::memcpy(in.Data(role) + i * sizeof amax, &amax, sizeof amax);
}

/// fp32 scales near the limits of binary32 and of the 16-bit types, and between these.
constexpr std::uint32_t kOddScales[] = {0u,          0x80000000u, 1u,          0x00400000u,
                                        0x00800000u, 0x3EAAAAABu, 0x3F800000u, 0xC0000000u,
                                        0x477FE000u, 0x7B124925u, 0x7F7FFFFFu, 0x7F800000u,
                                        0x7FC00000u, 0x33000000u, 0x33800001u};

TEST_P(BackendDequantizeTest, AllCodesUnderAllScales) {
  const Slot& slot = GetParam();
  const bool bytes = slot.scheme->layout.scale_type != ScaleType::kFloat32;
  // Each of 256 lines has all 256 codes. One-byte scales: line i has scale i. fp32 scales: each
  // position has each scale in one of the turns.
  QuantizedBuffers in = MakeInput(slot, {256, 256}, false);
  for (std::size_t line = 0; line < 256; ++line) {
    for (std::size_t code = 0; code < 256; ++code) {
      SetCode(slot, in, CodePlace(slot, {256, 256}, line, code), static_cast<std::uint32_t>(code));
    }
  }
  const std::size_t scales = FlattenShape(in.view[ScalesOf(slot)].shape).Size();
  for (std::size_t turn = 0; turn < (bytes ? 1 : std::size(kOddScales)); ++turn) {
    for (std::size_t item = 0; !bytes && item < scales; ++item) {
      SetItem(in, ScalesOf(slot), item, kOddScales[(item + turn) % std::size(kOddScales)]);
    }
    for (std::size_t line = 0; bytes && line < 256; ++line) {
      for (std::size_t block = 0; block < 256 / GeometryOf(slot).block; ++block)
        SetItem(in, ScalesOf(slot), ScalePlace(slot, in, line, block),
                static_cast<std::uint32_t>(line));
    }
    for (const float amax : {0.0f, 1.0f, 0x1.8p-140f, 0.3f, 3e38f, kInfinity}) {
      SetAmaxes(slot, in, amax);
      ExpectReference(slot, in, Placement::kContiguous);
      if (HasFatalFailure()) return;
      if (!Packed(slot)) break;
    }
  }
}

/// Returns a tensor of {2, 256} whose rows have all codes of finite numbers, and zeros in place of
/// the others: for such tensors kernels use their fast paths.
QuantizedBuffers MakeNumbers(const Slot& slot) {
  QuantizedBuffers in = MakeInput(slot, {2, 256}, false);
  const auto largest = slot.scheme->name.ends_with("e5m2") ? E5M2::kMaxCode : E4M3::kMaxCode;
  for (std::size_t i = 0; i < 512; ++i) {
    const auto code = static_cast<std::uint32_t>((i + i / 256) % 256);
    SetCode(slot, in, i, Packed(slot) || (code & 0x7F) <= largest ? code : 0);
  }
  SetAmaxes(slot, in, 3.0f);
  return in;
}

/// Returns all one-byte scales, or fp32 scales of every exponent with the mantissas 0, 1, 0x7FFFFF
/// and a random one.
std::vector<std::uint32_t> Scales(const Slot& slot) {
  std::mt19937 random(3);
  std::vector<std::uint32_t> scales;
  for (std::uint32_t i = 0; i < 256; ++i) {
    if (slot.scheme->layout.scale_type != ScaleType::kFloat32) {
      scales.push_back(i);
      continue;
    }
    for (const std::uint32_t mantissa :
         {0u, 1u, 0x7FFFFFu, static_cast<std::uint32_t>(random()) & 0x7FFFFFu})
      scales.push_back(i << 23 | mantissa);
  }
  return scales;
}

TEST_P(BackendDequantizeTest, NumbersUnderEachScale) {
  const Slot& slot = GetParam();
  QuantizedBuffers in = MakeNumbers(slot);
  const std::size_t items = FlattenShape(in.view[ScalesOf(slot)].shape).Size();
  for (const std::uint32_t scale : Scales(slot)) {
    for (std::size_t item = 0; item < items; ++item) SetItem(in, ScalesOf(slot), item, scale);
    ExpectReference(slot, in, Placement::kContiguous);
    if (HasFatalFailure()) return;
  }
}

TEST_P(BackendDequantizeTest, ShapesAndPlacementsDoNotMatter) {
  const Slot& slot = GetParam();
  std::mt19937_64 random(RunSeed());
  const Shape shapes[] = {{},       {33},      {1, 1},    {1, 31},    {33, 1}, {5, 7}, {65, 48},
                          {64, 64}, {40, 300}, {130, 33}, {3, 5, 67}, {0, 8},  {8, 0}, {200, 150}};
  for (const Shape& shape : shapes) {
    const MatrixShape matrix = FlattenShape(shape);
    if (Packed(slot) && (Rowwise(slot) ? matrix.cols : matrix.rows) % 2 != 0) continue;
    for (const bool swizzled : {false, true}) {
      if (swizzled && !slot.scheme->layout.swizzles) continue;
      QuantizedBuffers in = MakeInput(slot, shape, swizzled);
      for (const BufferPlan& buffer : in.plan()) {
        for (std::size_t i = 0; i < BufferBytes(buffer); ++i)
          in.Data(buffer.role)[i] = static_cast<std::byte>(random());
      }
      for (const Placement placement : kPlacements) {
        ExpectReference(slot, in, placement);
        ASSERT_FALSE(HasFatalFailure()) << "NF_TEST_SEED=" << RunSeed();
      }
    }
  }
}

// Tensors of several tiles. Their rows fill whole cache lines, so that tiles end where a cache line
// begins.
TEST_P(BackendDequantizeTest, TensorsThatBeginInsideALine) {
  const Slot& slot = GetParam();
  std::mt19937_64 random(RunSeed());
  for (const Shape& shape : {Shape{384, 256}, Shape{32, 4288}, Shape{40, 2048}}) {
    for (const std::size_t misalignment : {0u, 16u}) {
      QuantizedBuffers in(
          {.scheme = slot.scheme, .rowwise = Rowwise(slot), .columnwise = !Rowwise(slot)}, shape,
          misalignment);
      for (const BufferPlan& buffer : in.plan()) {
        for (std::size_t i = 0; i < BufferBytes(buffer); ++i)
          in.Data(buffer.role)[i] = static_cast<std::byte>(random());
      }
      ExpectReference(slot, in, Placement::kInsideLine);
      ASSERT_FALSE(HasFatalFailure()) << "NF_TEST_SEED=" << RunSeed();
    }
  }
}

TEST_P(BackendDequantizeTest, OptionsOfNvfp4) {
  const Slot& slot = GetParam();
  if (slot.scheme->layout.amax != AmaxBuffers::kPerDirection) return;
  std::mt19937_64 random(RunSeed());
  for (const auto& [row_scaled, e4m3_max] :
       {std::pair{true, 448.0f}, {true, 256.0f}, {false, 256.0f}}) {
    if (row_scaled && !slot.scheme->options.Has(Option::kRowScaled)) continue;
    QuantSpec spec{.scheme = slot.scheme, .rowwise = Rowwise(slot), .columnwise = !Rowwise(slot)};
    spec.row_scaled = row_scaled;
    spec.e4m3_max = e4m3_max;
    QuantizedBuffers in(spec, {200, 150});
    for (const BufferPlan& buffer : in.plan()) {
      for (std::size_t i = 0; i < BufferBytes(buffer); ++i)
        in.Data(buffer.role)[i] = static_cast<std::byte>(random());
    }
    ExpectReference(slot, in, Placement::kContiguous);
    ASSERT_FALSE(HasFatalFailure()) << "NF_TEST_SEED=" << RunSeed();
  }
}

INSTANTIATE_TEST_SUITE_P(Slots, BackendDequantizeTest, testing::ValuesIn(Slots()), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
