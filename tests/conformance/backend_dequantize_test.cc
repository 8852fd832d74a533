// SPDX-License-Identifier: Apache-2.0
// Every dequantize slot of every backend against the definition: all codes under all scales, ragged
// shapes, outputs of any placement.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "tests/conformance/reference_quantize.h"
#include "tests/conformance/tensors.h"

namespace narrowfloat::conformance {
namespace {

struct Slot {
  const SchemeInfo* scheme;
  Direction direction;
  DType dtype;
};

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

bool Rowwise(const Slot& slot) {
  return slot.direction == Direction::kRowwise;
}

QuantizedBuffers MakeInput(const Slot& slot, const Shape& shape, bool swizzled) {
  return QuantizedBuffers({.scheme = slot.scheme,
                           .rowwise = Rowwise(slot),
                           .columnwise = !Rowwise(slot),
                           .swizzled = swizzled},
                          shape);
}

/// Value, by the definition, of element (row, col).
std::uint32_t Expected(const Slot& slot, const QuantizedBuffers& in, std::size_t row,
                       std::size_t col) {
  const MatrixShape matrix = FlattenShape(in.view.shape);
  const std::byte* codes = in.Data(Rowwise(slot) ? Role::kRowwiseData : Role::kColumnwiseData);
  const std::byte* scales =
      in.Data(Rowwise(slot) ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv);
  const bool whole = slot.scheme->block == kWholeTensor;
  const std::size_t place =
      whole && !Rowwise(slot) ? col * matrix.rows + row : row * matrix.cols + col;
  const auto code = std::to_integer<std::uint32_t>(codes[place]);
  if (whole) {
    float scale_inv = 0;
    std::memcpy(&scale_inv, scales, sizeof scale_inv);
    return ReferenceDequantize(slot.scheme->element, code, static_cast<double>(scale_inv),
                               slot.dtype);
  }
  const std::size_t line = Rowwise(slot) ? row : col, block = (Rowwise(slot) ? col : row) / 32;
  const MatrixShape stored = FlattenShape(
      in.view[Rowwise(slot) ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv].shape);
  const std::size_t tiles = (Rowwise(slot) ? stored.cols : stored.rows) / 4;
  std::size_t at = Rowwise(slot) ? line * stored.cols + block : block * stored.cols + line;
  if (in.view.spec.swizzled) {
    at = (line / 128 * tiles + block / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 + block % 4;
  }
  const auto scale_code = std::to_integer<int>(scales[at]);
  const double scale_inv = scale_code == 0xFF ? std::numeric_limits<double>::quiet_NaN()
                                              : std::ldexp(1.0, scale_code - 127);
  return ReferenceDequantize(slot.scheme->element, code, scale_inv, slot.dtype);
}

void ExpectDefinition(const Slot& slot, const QuantizedBuffers& in, Placement placement) {
  const MatrixShape matrix = FlattenShape(in.view.shape);
  FloatTensor expected(slot.dtype, in.view.shape);
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected.SetBits(i, Expected(slot, in, i / matrix.cols, i % matrix.cols));
  for (const KernelTable* backend : AvailableKernels()) {
    for (const Manner& manner : kManners) {
      FloatTensor got(slot.dtype, in.view.shape, placement);
      Dequantize(in.view, got.View(),
                 {.threads = manner.threads, .kernels = backend, .stores = manner.stores});
      ASSERT_EQ(Difference(expected, got), "") << fmt::format(
          "{} {}, {}, on {} with {} threads", PrintQuantSpec(in.view.spec),
          ShapeText(in.view.shape), PlacementName(placement), backend->name, manner.threads);
    }
  }
}

class BackendDequantizeTest : public testing::TestWithParam<Slot> {};

TEST_P(BackendDequantizeTest, AllCodesUnderAllScales) {
  const Slot& slot = GetParam();
  if (slot.scheme->block == kWholeTensor) {
    // Scales at the ends of binary32 and of the 16-bit types, and in between.
    for (const std::uint32_t bits :
         {0u, 0x80000000u, 1u, 0x00400000u, 0x00800000u, 0x3EAAAAABu, 0x3F800000u, 0xC0000000u,
          0x477FE000u, 0x7B124925u, 0x7F7FFFFFu, 0x7F800000u, 0x7FC00000u, 0x33000000u,
          0x33800001u}) {
      QuantizedBuffers in = MakeInput(slot, {16, 16}, false);
      for (std::size_t code = 0; code < 256; ++code)
        in.Data(Rowwise(slot) ? Role::kRowwiseData : Role::kColumnwiseData)[code] =
            static_cast<std::byte>(code);
      std::memcpy(in.Data(Rowwise(slot) ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv),
                  &bits, sizeof bits);
      ExpectDefinition(slot, in, Placement::kContiguous);
      if (HasFatalFailure()) return;
    }
    return;
  }
  // Line i has scale i in all of its 8 blocks of 32, which hold the 256 codes.
  QuantizedBuffers in = MakeInput(slot, {256, 256}, false);
  for (std::size_t line = 0; line < 256; ++line) {
    for (std::size_t code = 0; code < 256; ++code) {
      if (Rowwise(slot)) {
        in.Data(Role::kRowwiseData)[line * 256 + code] = static_cast<std::byte>(code);
        in.Data(Role::kRowwiseScaleInv)[line * 8 + code / 32] = static_cast<std::byte>(line);
      } else {
        in.Data(Role::kColumnwiseData)[code * 256 + line] = static_cast<std::byte>(code);
        in.Data(Role::kColumnwiseScaleInv)[code / 32 * 256 + line] = static_cast<std::byte>(line);
      }
    }
  }
  ExpectDefinition(slot, in, Placement::kContiguous);
}

/// A tensor of {2, 256} in which each row holds all codes, but those that are no numbers: there
/// kernels take their fast ways.
QuantizedBuffers MakeNumbers(const Slot& slot) {
  QuantizedBuffers in = MakeInput(slot, {2, 256}, false);
  const auto largest = slot.scheme->name.ends_with("e4m3") ? E4M3::kMaxCode : E5M2::kMaxCode;
  std::byte* codes = in.Data(Rowwise(slot) ? Role::kRowwiseData : Role::kColumnwiseData);
  for (std::size_t i = 0; i < 512; ++i) {
    const std::size_t code = (i + i / 256) % 256;
    codes[i] = static_cast<std::byte>((code & 0x7F) <= largest ? code : 0);
  }
  return in;
}

TEST_P(BackendDequantizeTest, NumbersUnderEachScale) {
  const Slot& slot = GetParam();
  QuantizedBuffers in = MakeNumbers(slot);
  const Role role = Rowwise(slot) ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
  if (slot.scheme->block != kWholeTensor) {
    const std::size_t items = FlattenShape(in.view[role].shape).Size();
    for (int scale = 0; scale < 256; ++scale) {
      std::memset(in.Data(role), scale, items);
      ExpectDefinition(slot, in, Placement::kContiguous);
      if (HasFatalFailure()) return;
    }
    return;
  }
  // Every exponent, with the mantissas at its ends and one in between.
  std::mt19937 random(3);
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (const std::uint32_t mantissa :
         {0u, 1u, 0x7FFFFFu, static_cast<std::uint32_t>(random()) & 0x7FFFFFu}) {
      const std::uint32_t bits = exponent << 23 | mantissa;
      std::memcpy(in.Data(role), &bits, sizeof bits);
      ExpectDefinition(slot, in, Placement::kContiguous);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(BackendDequantizeTest, ShapesAndPlacementsDoNotMatter) {
  const Slot& slot = GetParam();
  std::mt19937_64 random(RunSeed());
  const Shape shapes[] = {{},       {33},      {1, 1},    {1, 31},    {33, 1}, {5, 7}, {65, 48},
                          {64, 64}, {40, 300}, {130, 33}, {3, 5, 67}, {0, 8},  {8, 0}};
  for (const Shape& shape : shapes) {
    for (const bool swizzled : {false, true}) {
      if (swizzled && !slot.scheme->layout.swizzles) continue;
      QuantizedBuffers in = MakeInput(slot, shape, swizzled);
      for (const BufferPlan& buffer : in.plan()) {
        for (std::size_t i = 0; i < BufferBytes(buffer); ++i)
          in.Data(buffer.role)[i] = static_cast<std::byte>(random());
      }
      for (const Placement placement : kPlacements) {
        ExpectDefinition(slot, in, placement);
        ASSERT_FALSE(HasFatalFailure()) << "NF_TEST_SEED=" << RunSeed();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Slots, BackendDequantizeTest, testing::ValuesIn(Slots()), NameOf);

}  // namespace
}  // namespace narrowfloat::conformance
