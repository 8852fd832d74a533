// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/derive_columnwise.h"

#include <fmt/format.h>

#include "narrowfloat/ops/backend.h"
#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/ops/view_checks.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr const char* kVerb = "derive_columnwise";
constexpr const char* kTransposeVerb = "transpose_codes";

/// Checks the specs and shapes of the two tensors, but not their buffers.
void CheckDerives(const ConstQuantizedView& in, const QuantizedView& out) {
  const QuantSpec& spec = in.spec;
  CheckScheme(spec);
  CheckScheme(out.spec);
  if (!DerivesColumnwise(*spec.scheme)) {
    throw InvalidArgument(
        fmt::format("{}: the scheme must have one scale, or square tiles and transposed columnwise "
                    "codes, got {}",
                    kVerb, spec.scheme->name));
  }
  if (spec.swizzled || out.spec.swizzled) {
    throw InvalidArgument("derive_columnwise: scales must be compact, got swizzled ones");
  }
  if (in.spec.scheme != out.spec.scheme || in.shape != out.shape) {
    throw InvalidArgument(fmt::format(
        "{}: the output must have the scheme and shape of the input, {} {}, got {} {}", kVerb,
        spec.scheme->name, ShapeText(in.shape), out.spec.scheme->name, ShapeText(out.shape)));
  }
}

}  // namespace

bool DerivesColumnwise(const SchemeInfo& scheme) {
  if (!scheme.layout.columnwise_transposed) return false;
  return scheme.HasOneScale() || scheme.block.rows == scheme.block.cols;
}

void DeriveColumnwise(const ConstQuantizedView& in, const QuantizedView& out,
                      const Execution& execution) {
  CheckDerives(in, out);
  CheckScaledCodes(kVerb, in, Direction::kRowwise);
  CheckScaledCodes(kVerb, out, Direction::kColumnwise);
  CallTensors call(kVerb);
  const bool has_blocks = !in.spec.scheme->HasOneScale();
  for (const Role role : {Role::kColumnwiseData, Role::kColumnwiseScaleInv}) {
    if (role == Role::kColumnwiseData || has_blocks) call.Write({RoleName(role)}, out[role]);
  }
  AddScaledCodes(in, Direction::kRowwise, {}, call);
  call.Check().DeriveColumnwise(in, out, execution);
}

void TransposeCodes(const ConstTensorView& in, const TensorView& out, const Execution& execution) {
  if (in.shape.size() != 2) {
    throw InvalidArgument(fmt::format("{}: the input must have two dimensions, got shape {}",
                                      kTransposeVerb, ShapeText(in.shape)));
  }
  CheckDense(kTransposeVerb, "the input", in, DType::kUInt8, in.shape);
  CheckDense(kTransposeVerb, "the output", out, DType::kUInt8, {in.shape[1], in.shape[0]});
  CallTensors call(kTransposeVerb);
  call.Read({"the input"}, in);
  call.Write({"the output"}, out);
  call.Check().TransposeCodes(in, out, execution);
}

}  // namespace narrowfloat
