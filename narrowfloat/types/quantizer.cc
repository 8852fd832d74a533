// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/quantizer.h"

#include <fmt/format.h>

#include <utility>

#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

/// Checks that buffers made for `from` fit `to`. Formats and options may differ, layouts must not.
/// Errors: InvalidArgument.
void CheckSameLayout(const QuantSpec& from, const QuantSpec& to, const Shape& shape) {
  const auto plan = [&](const QuantSpec& spec) {
    return PlanQuantize({.scheme = spec.scheme, .rowwise = to.rowwise, .columnwise = to.columnwise},
                        shape);
  };
  if (from.scheme == to.scheme || plan(from) == plan(to)) return;
  throw InvalidArgument(fmt::format("update_quantized: buffers of {} cannot hold {}",
                                    from.scheme->name, to.scheme->name));
}

}  // namespace

void Quantizer::CheckShape(const char* /*verb*/, const Shape& shape) const {
  FlattenShape(shape);
}

void Quantizer::Observe(const ConstQuantizedView& /*quantized*/) const {}

bool Quantizer::IsQuantizable(const Shape& shape) const {
  try {
    CheckShape("quantize", shape);
  } catch (const InvalidArgument&) {
    return false;
  }
  return true;
}

void Quantizer::SetUsage(std::optional<bool> rowwise, std::optional<bool> columnwise) {
  spec_.rowwise = rowwise.value_or(spec_.rowwise);
  spec_.columnwise = columnwise.value_or(spec_.columnwise);
}

QuantizedTensor Quantizer::MakeEmpty(const Shape& shape, DType dtype) const {
  CheckShape("make_empty", shape);
  return QuantizedTensor(Spec(), shape, dtype);
}

QuantizedTensor Quantizer::Quantize(const ConstTensorView& in, const Execution& execution) const {
  CheckShape("quantize", in.shape);
  QuantizedTensor out(Spec(), in.shape, IsFloat(in.dtype) ? in.dtype : DType::kFloat32);
  if (execution.IsNoop()) {
    // A noop call writes no buffers; fills them with zeros instead of leaving them uninitialised.
    for (OwnedTensor& buffer : out.buffers_) buffer.FillZero();
  }
  narrowfloat::Quantize(in, out.View(), execution);
  if (!execution.IsNoop()) Observe(out.ConstView());
  return out;
}

void Quantizer::UpdateQuantized(const ConstTensorView& in, QuantizedTensorStorage& out,
                                const Execution& execution) const {
  out.RequireOwnership("update_quantized");
  CheckShape("update_quantized", in.shape);
  QuantizedTensorMetadata next{Spec(), out.GetShape(), out.NominalDType(), {}};
  CheckSameLayout(out.Spec(), next.spec, next.shape);
  const std::vector<BufferPlan> plan = PlanQuantize(next.spec, next.shape);
  for (const BufferPlan& planned : plan) {
    BufferOf(next.buffers, planned.role) = BufferOf(out.buffers_, planned.role).Share();
  }
  AllocateMissing(plan, next.buffers);
  QuantizedTensorStorage filled(std::move(next));
  narrowfloat::Quantize(in, filled.View(), execution);
  if (execution.IsNoop()) return;
  out = std::move(filled);
  Observe(out.ConstView());
}

}  // namespace narrowfloat
