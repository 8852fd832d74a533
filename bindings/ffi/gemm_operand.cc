// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/gemm_operand.h"

#include <fmt/format.h>

#include <utility>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::xla_ffi {
namespace {

InvalidArgument Mismatch(const char* name, std::size_t count, const ffi::AnyBuffer& buffer) {
  return InvalidArgument(fmt::format("{}: {} must have {} items, got shape {}", kGemmVerb, name,
                                     count, ShapeText(ShapeOf(buffer))));
}

/// Consumes `count` items of a buffer; returns the first one's index. Errors: InvalidArgument.
std::size_t Advance(const char* name, const ffi::AnyBuffer& buffer, std::size_t& used,
                    std::size_t items, std::size_t count) {
  if (count > items - used) throw Mismatch(name, used + count, buffer);
  return std::exchange(used, used + count);
}

const std::byte* BytesAt(const ffi::AnyBuffer& buffer, std::size_t offset) {
  return static_cast<const std::byte*>(buffer.untyped_data()) + offset;
}

}  // namespace

QuantSpec SpecOfOneDirection(std::string_view text) {
  const QuantSpec spec = ParseQuantSpec(text);
  if (spec.rowwise != spec.columnwise) return spec;
  throw InvalidArgument(fmt::format(
      "{}: spec must name one direction, the one that data holds, got '{}'", kGemmVerb, text));
}

GemmLayout LayoutOf(const Operand& lhs, const Operand& rhs) {
  if (lhs.spec.rowwise) return rhs.spec.rowwise ? GemmLayout::kTN : GemmLayout::kNN;
  if (rhs.spec.columnwise) return GemmLayout::kNT;
  throw InvalidArgument(
      fmt::format("{}: columnwise lhs needs columnwise rhs, got rowwise", kGemmVerb));
}

OperandBuffers::OperandBuffers(const Operand& operand, std::size_t groups,
                               const Execution& execution)
    : operand_(operand),
      execution_(execution),
      groups_(groups),
      codes_(operand.data.element_count()),
      scales_(operand.scale_inv.element_count()) {
  Codes({kGemmVerb, operand.names.data}, operand.data, operand.Scheme(), codes_);
  CheckScaleDType({kGemmVerb, operand.names.scale_inv}, operand.scale_inv, operand.Scheme());
  if (!operand.is_turned) return;
  if (!operand.Scheme().HasOneScale() || !operand.spec.columnwise) {
    throw InvalidArgument(fmt::format(
        "{}: codes of {} must be columnwise and have one scale to be transposed, got {}", kGemmVerb,
        operand.names.data, operand.Scheme().name));
  }
  turned_ = std::make_unique_for_overwrite<std::byte[]>(codes_);
}

ConstQuantizedView OperandBuffers::Take(std::size_t group, std::int64_t size) {
  const auto extent = [size](std::int64_t n) { return n < 0 ? size : n; };
  const Shape shape{extent(operand_.rows), extent(operand_.cols)};
  return BindBuffers<ConstQuantizedView>(
      operand_.spec, shape, [&](const BufferPlan& buffer) { return Memory(buffer, group, shape); });
}

void OperandBuffers::CheckAllTaken(bool is_grouped) const {
  if (used_codes_ != codes_) throw Mismatch(operand_.names.data, used_codes_, operand_.data);
  if (!is_grouped && used_scales_ != scales_)
    throw Mismatch(operand_.names.scale_inv, used_scales_, operand_.scale_inv);
}

const std::byte* OperandBuffers::Memory(const BufferPlan& buffer, std::size_t group,
                                        const Shape& shape) {
  switch (buffer.role) {
    case Role::kRowwiseData:
    case Role::kColumnwiseData: {
      const std::size_t first = Advance(operand_.names.data, operand_.data, used_codes_, codes_,
                                        FlattenShape(shape).Size());
      const std::byte* codes = BytesAt(operand_.data, CodeBytes(operand_.Scheme(), first));
      if (!operand_.is_turned) return codes;
      std::byte* turned = turned_.get() + first;
      TransposeCodes({codes, DType::kUInt8, shape},
                     TensorView{turned, DType::kUInt8, {shape[1], shape[0]}}, execution_);
      return turned;
    }
    case Role::kRowwiseScaleInv:
    case Role::kColumnwiseScaleInv: {
      const std::size_t count =
          operand_.Scheme().HasOneScale() ? 1 : FlattenShape(buffer.shape).Size();
      const std::size_t first =
          Advance(operand_.names.scale_inv, operand_.scale_inv, used_scales_, scales_, count);
      return BytesAt(operand_.scale_inv, first * ffi::ByteWidth(operand_.scale_inv.element_type()));
    }
    case Role::kAmaxRowwise:
    case Role::kAmaxColumnwise:
      if (!NeedsAmax(operand_.Scheme())) return nullptr;
      return reinterpret_cast<const std::byte*>(
          Floats({kGemmVerb, operand_.names.amax}, operand_.amax, groups_) + group);
    case Role::kScale:
      break;
  }
  return nullptr;
}

}  // namespace narrowfloat::xla_ffi
