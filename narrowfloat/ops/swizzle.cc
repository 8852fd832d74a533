// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/swizzle.h"

#include <fmt/format.h>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

void CheckPair(const char* verb, const ConstQuantizedView& in, const QuantizedView& out,
               bool reads_swizzled) {
  CheckScheme(in.spec);
  if (!in.spec.scheme->layout.swizzles) {
    throw InvalidArgument(fmt::format("{}: the scheme must have swizzled scales, got {}", verb,
                                      in.spec.scheme->name));
  }
  QuantSpec wanted = in.spec;
  wanted.swizzled = !reads_swizzled;
  if (in.spec.swizzled != reads_swizzled) {
    throw InvalidArgument(
        fmt::format("{}: the scales must be {}", verb,
                    reads_swizzled ? "swizzled, got compact ones" : "compact, got swizzled ones"));
  }
  if (!(out.spec == wanted) || in.shape != out.shape) {
    throw InvalidArgument(fmt::format("{}: the output must be {} of shape {}, got {} of shape {}",
                                      verb, PrintQuantSpec(wanted), ShapeText(in.shape),
                                      PrintQuantSpec(out.spec), ShapeText(out.shape)));
  }
}

/// Returns true if a direction is to be permuted: it has codes or scales. Requires: a valid shape.
bool IsGiven(const ConstQuantizedView& in, Direction direction) {
  return HasDirection(in, direction) || in[DataRole(direction)].data != nullptr ||
         in[ScaleInvRole(direction)].data != nullptr;
}

/// Adds one direction's buffers. Codes and amaxes that are one memory in both tensors are only
/// read.
void AddCopies(const ConstQuantizedView& in, const QuantizedView& out, Direction direction,
               CallTensors& call) {
  for (const Role role : {DataRole(direction), ScaleInvRole(direction), AmaxRole(direction)}) {
    if (in[role].data == nullptr) continue;
    const bool stays = role != ScaleInvRole(direction) && in[role].data == out[role].data;
    if (!stays) call.Write({RoleName(role)}, out[role]);
    call.Read({RoleName(role), "the input"}, in[role]);
  }
}

void Permute(const char* verb, const ConstQuantizedView& given, const QuantizedView& out,
             bool reads_swizzled, const Execution& execution) {
  CheckPair(verb, given, out, reads_swizzled);
  QuantSpec both = given.spec;  // permutes the directions that are present
  both.rowwise = both.columnwise = true;
  const PlannedView planned(given, both);
  const ConstQuantizedView& in = *planned;
  CallTensors call(verb);
  bool is_any_given = false;
  for (const Direction direction : {Direction::kRowwise, Direction::kColumnwise}) {
    if (!IsGiven(in, direction)) continue;
    is_any_given = true;
    const bool has_amax = in[AmaxRole(direction)].data != nullptr;
    const auto check = has_amax ? &CheckDirection : &CheckScaledCodes;
    check(verb, in, direction);
    check(verb, out, direction);
    AddCopies(in, out, direction, call);
  }
  if (!is_any_given) {
    throw InvalidArgument(fmt::format(
        "{}: {} needs data and scale_inv of one direction, got neither rowwise nor columnwise",
        verb, in.spec.scheme->name));
  }
  call.Check().Swizzle(in, out, execution);
}

}  // namespace

void Swizzle(const ConstQuantizedView& in, const QuantizedView& out, const Execution& execution) {
  Permute("swizzle", in, out, false, execution);
}

void Unswizzle(const ConstQuantizedView& in, const QuantizedView& out, const Execution& execution) {
  Permute("unswizzle", in, out, true, execution);
}

}  // namespace narrowfloat
