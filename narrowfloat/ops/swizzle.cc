// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/swizzle.h"

#include <fmt/format.h>

#include <cstring>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/strided_rows.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

void CheckPair(const char* verb, const ConstQuantizedView& in, const QuantizedView& out,
               bool reads_swizzled) {
  if (!in.spec.scheme->layout.swizzles) {
    throw InvalidArgument(fmt::format("{}: the scheme must have swizzled scales, got {}", verb,
                                      in.spec.scheme->name));
  }
  QuantSpec wanted = in.spec;
  wanted.swizzled = !reads_swizzled;
  if (in.spec.swizzled != reads_swizzled) {
    throw InvalidArgument(fmt::format("{}: the scales must not be {} already", verb,
                                      reads_swizzled ? "compact" : "swizzled"));
  }
  if (!(out.spec == wanted) || in.shape != out.shape) {
    throw InvalidArgument(fmt::format("{}: the output must be {} of shape {}, got {} of shape {}",
                                      verb, PrintQuantSpec(wanted), ShapeText(in.shape),
                                      PrintQuantSpec(out.spec), ShapeText(out.shape)));
  }
}

/// Copies buffers that are equal in both layouts, if present.
void CopyBuffer(const ConstQuantizedView& in, const QuantizedView& out, Role role) {
  if (in[role].data == out[role].data || in[role].data == nullptr) return;
  std::memcpy(out[role].data, in[role].data,
              FlattenShape(in[role].shape).Size() * ItemSize(in[role].dtype));
}

void PermuteScales(const char* verb, const ConstQuantizedView& in, const QuantizedView& out,
                   Direction direction) {
  const DirectionBuffers<const std::byte> from = BuffersOf(in, direction);
  const DirectionBuffers<std::byte> to = BuffersOf(out, direction);
  const Role role = ScaleInvRole(direction);
  CheckDisjoint(verb, RoleName(role), ExtentOf(out[role]), "its source", ExtentOf(in[role]));
  const ScaleGrid grid = MakeScaleGrid(*in.spec.scheme, direction, FlattenShape(in.shape));
  // Moves padding too, so that the two verbs are inverse to each other on any bytes.
  for (std::size_t line = 0; line < grid.padded_lines; ++line) {
    for (std::size_t block = 0; block < grid.padded_blocks; ++block) {
      to.scale_inv[to.strides.LineOffset(line) + to.strides.BlockOffset(block)] =
          from.scale_inv[from.strides.LineOffset(line) + from.strides.BlockOffset(block)];
    }
  }
}

void Permute(const char* verb, const ConstQuantizedView& in, const QuantizedView& out,
             bool reads_swizzled) {
  CheckPair(verb, in, out, reads_swizzled);
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    if (!HasDirection(in, direction)) continue;
    CheckScaledCodes(verb, in, direction);
    CheckScaledCodes(verb, out, direction);
  }
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    if (!HasDirection(in, direction)) continue;
    PermuteScales(verb, in, out, direction);
    CopyBuffer(in, out, DataRole(direction));
    CopyBuffer(in, out, AmaxRole(direction));
  }
}

}  // namespace

void Swizzle(const ConstQuantizedView& in, const QuantizedView& out) {
  Permute("swizzle", in, out, false);
}

void Unswizzle(const ConstQuantizedView& in, const QuantizedView& out) {
  Permute("unswizzle", in, out, true);
}

}  // namespace narrowfloat
