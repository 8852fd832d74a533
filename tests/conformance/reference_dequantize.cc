// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/reference_dequantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/conformance/reference_codec.h"
#include "tests/conformance/reference_quantize.h"

namespace narrowfloat::conformance {

bool Rowwise(const Slot& slot) {
  return slot.direction == Direction::kRowwise;
}

Role DataOf(const Slot& slot) {
  return Rowwise(slot) ? Role::kRowwiseData : Role::kColumnwiseData;
}
Role ScalesOf(const Slot& slot) {
  return Rowwise(slot) ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
}

Geometry GeometryOf(const Slot& slot) {
  const std::string_view name = slot.scheme->name;
  if (name.starts_with("fp8_block128x128")) return {128, 128, true, false};
  if (name.starts_with("fp8_block1x128")) return {1, 128, true, true};
  if (name.starts_with("nvfp4")) return {1, 16, true, false};
  if (name.starts_with("mxfp4")) return {1, 32, true, false};
  if (name.starts_with("mxfp8")) return {1, 32, false, !Rowwise(slot)};
  return {0, 0, true, false};
}

std::size_t CodePlace(const Slot& slot, MatrixShape matrix, std::size_t line, std::size_t pos) {
  if (Rowwise(slot)) return line * matrix.cols + pos;
  return GeometryOf(slot).transposed ? line * matrix.rows + pos : pos * matrix.cols + line;
}

std::size_t ScalePlace(const Slot& slot, const QuantizedBuffers& in, std::size_t line,
                       std::size_t block) {
  const Geometry geometry = GeometryOf(slot);
  const MatrixShape stored = FlattenShape(in.view[ScalesOf(slot)].shape);
  if (in.view.spec.swizzled) {
    const std::size_t tiles = (geometry.block_major ? stored.rows : stored.cols) / 4;
    return (line / 128 * tiles + block / 4) * 512 + line % 32 * 16 + line % 128 / 32 * 4 +
           block % 4;
  }
  const std::size_t stored_line = line / geometry.lines_per_scale;
  return geometry.block_major ? block * stored.cols + stored_line
                              : stored_line * stored.cols + block;
}

std::uint32_t ItemAt(const QuantizedBuffers& in, Role role, std::size_t item) {
  const std::size_t bytes = ItemSize(in.view[role].dtype);
  std::uint32_t bits = 0;
  std::memcpy(&bits, in.Data(role) + item * bytes, bytes);
  return bits;
}

void SetItem(QuantizedBuffers& in, Role role, std::size_t item, std::uint32_t bits) {
  const std::size_t bytes = ItemSize(in.view[role].dtype);
  std::memcpy(in.Data(role) + item * bytes, &bits, bytes);
}

bool Packed(const Slot& slot) {
  return slot.scheme->element_bits == 4;
}

void SetCode(const Slot& slot, QuantizedBuffers& in, std::size_t place, std::uint32_t code) {
  if (!Packed(slot)) return SetItem(in, DataOf(slot), place, code);
  const std::uint32_t other = ItemAt(in, DataOf(slot), place / 2) & (0xFu << (1 - place % 2) * 4);
  SetItem(in, DataOf(slot), place / 2, other | (code & 0xF) << place % 2 * 4);
}

namespace {

std::uint32_t CodeAt(const Slot& slot, const QuantizedBuffers& in, std::size_t place) {
  if (!Packed(slot)) return ItemAt(in, DataOf(slot), place);
  return ItemAt(in, DataOf(slot), place / 2) >> place % 2 * 4 & 0xF;
}

/// Returns the amax of NVFP4's scales: the tensor's, or the line's if the spec is row_scaled.
double AmaxValue(const Slot& slot, const QuantizedBuffers& in, std::size_t line) {
  float amax = 0;
  std::memcpy(&amax,
              in.Data(Rowwise(slot) ? Role::kAmaxRowwise : Role::kAmaxColumnwise) +
                  (in.view.spec.row_scaled ? line * sizeof amax : 0),
              sizeof amax);
  return static_cast<double>(amax);
}

/// Returns the factor that a stored scale_inv stands for.
double ScaleValue(const Slot& slot, const QuantizedBuffers& in, std::size_t line,
                  std::uint32_t scale_inv) {
  if (slot.scheme->name.starts_with("nvfp4")) {
    const float finv =
        std::bit_cast<float>(in.view.spec.e4m3_max == 448.0f ? 0x39C30C31u : 0x3A2AAAABu);
    const auto product =
        static_cast<float>(ReferenceCodecOf("e4m3").Value(scale_inv) * AmaxValue(slot, in, line));
    return static_cast<double>(
        static_cast<float>(static_cast<double>(product) * static_cast<double>(finv)));
  }
  if (slot.scheme->layout.scale_type == ScaleType::kFloat32)
    return static_cast<double>(std::bit_cast<float>(scale_inv));
  return scale_inv == 0xFF ? std::numeric_limits<double>::quiet_NaN()
                           : std::ldexp(1.0, static_cast<int>(scale_inv) - 127);
}

}  // namespace

std::uint32_t ReferenceValue(const Slot& slot, const QuantizedBuffers& in, std::size_t row,
                             std::size_t col) {
  const MatrixShape matrix = FlattenShape(in.view.shape);
  const std::size_t line = Rowwise(slot) ? row : col, pos = Rowwise(slot) ? col : row;
  const std::uint32_t code = CodeAt(slot, in, CodePlace(slot, matrix, line, pos));
  const std::size_t block = GeometryOf(slot).block;
  const std::size_t place = block == 0 ? 0 : ScalePlace(slot, in, line, pos / block);
  return ReferenceDequantize(slot.scheme->element, code,
                             ScaleValue(slot, in, line, ItemAt(in, ScalesOf(slot), place)),
                             slot.dtype);
}

}  // namespace narrowfloat::conformance
