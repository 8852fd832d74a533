// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/quantized_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

[[noreturn]] void ThrowSize(const Shape& from, const Shape& to) {
  throw InvalidArgument(
      fmt::format("reshape: the new shape must have as many elements as {}, got {}",
                  ShapeText(from), ShapeText(to)));
}

/// Replaces a -1 by the size that follows from the element count.
Shape ResolveShape(const Shape& from, const Shape& wanted) {
  const auto elements = static_cast<std::int64_t>(FlattenShape(from).Size());
  const auto unknowns = std::ranges::count(wanted, -1);
  if (unknowns > 1) {
    throw InvalidArgument(
        fmt::format("reshape: only one dimension can be -1, got {}", ShapeText(wanted)));
  }
  Shape shape = wanted;
  if (unknowns == 1) {
    const auto unknown = std::ranges::find(shape, -1);
    *unknown = 1;
    const auto known = static_cast<std::int64_t>(FlattenShape(shape).Size());
    if (known == 0 || elements % known != 0) ThrowSize(from, wanted);
    *unknown = elements / known;
  }
  if (static_cast<std::int64_t>(FlattenShape(shape).Size()) != elements) ThrowSize(from, wanted);
  return shape;
}

}  // namespace

QuantizedTensor QuantizedTensor::Clone() const {
  QuantizedTensorMetadata metadata = GetMetadata();
  for (const BufferPlan& planned : PlanQuantize(metadata.spec, metadata.shape)) {
    OwnedTensor& buffer = BufferOf(metadata.buffers, planned.role);
    buffer = planned.storage == planned.role ? buffer.Clone() : OwnedTensor();
  }
  return QuantizedTensor(std::move(metadata));
}

QuantizedTensor QuantizedTensor::ToDType(DType dtype) const {
  QuantizedTensorMetadata metadata = GetMetadata();
  metadata.dtype = dtype;
  return QuantizedTensor(std::move(metadata));
}

QuantizedTensor QuantizedTensor::Reshape(const Shape& shape) const {
  QuantizedTensorMetadata metadata = GetMetadata();
  metadata.shape = ResolveShape(metadata.shape, shape);
  const SchemeInfo& scheme = *metadata.spec.scheme;
  if (FlattenShape(metadata.shape) != FlattenShape(GetShape())) {
    if (!scheme.HasOneScale()) {
      throw InvalidArgument(fmt::format(
          "reshape: {} cuts blocks along the last dimension, which must stay {}, got {}",
          scheme.name, GetShape().back(), ShapeText(metadata.shape)));
    }
    if (!metadata.spec.rowwise) {
      throw Unsupported(fmt::format(
          "reshape: {} with columnwise codes alone must keep its last dimension {}, got {}",
          scheme.name, GetShape().back(), ShapeText(metadata.shape)));
    }
    metadata.spec.columnwise = false;
  }
  OwnedBuffers buffers;
  for (const BufferPlan& planned : PlanQuantize(metadata.spec, metadata.shape)) {
    const OwnedTensor& buffer = BufferOf(metadata.buffers, planned.role);
    if (buffer) BufferOf(buffers, planned.role) = buffer.ShareAs(planned.shape);
  }
  metadata.buffers = std::move(buffers);
  return QuantizedTensor(std::move(metadata));
}

}  // namespace narrowfloat
