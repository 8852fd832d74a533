// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/buffers.h"

#include <fmt/format.h>

#include <algorithm>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/huge_pages.h"

namespace narrowfloat::xla_ffi {
namespace {

struct TypeName {
  ffi::DataType type;
  std::string_view name;
};
constexpr TypeName kTypeNames[] = {
    {ffi::F32, "float32"},
    {ffi::F16, "float16"},
    {ffi::BF16, "bfloat16"},
    {ffi::F64, "float64"},
    {ffi::F8E4M3FN, "float8_e4m3fn"},
    {ffi::F8E5M2, "float8_e5m2"},
    {ffi::F8E8M0FNU, "float8_e8m0fnu"},
    {ffi::F4E2M1FN, "float4_e2m1fn"},
    {ffi::U8, "uint8"},
    {ffi::U32, "uint32"},
    {ffi::S32, "int32"},
    {ffi::S64, "int64"},
    {ffi::S8, "int8"},
    {ffi::PRED, "bool"},
};

std::string_view NameOfType(ffi::DataType type) {
  const auto* found = std::ranges::find(kTypeNames, type, &TypeName::type);
  return found == std::end(kTypeNames) ? "another dtype" : found->name;
}

DType FloatType(BufferName what, const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::F32:
      return DType::kFloat32;
    case ffi::F16:
      return DType::kFloat16;
    case ffi::BF16:
      return DType::kBFloat16;
    default:
      break;
  }
  throw InvalidArgument(fmt::format("{}: {} must be float32, float16 or bfloat16, got {}",
                                    what.verb, what.name, DTypeNameOf(buffer)));
}

Shape ToShape(MatrixShape matrix) {
  return {static_cast<std::int64_t>(matrix.rows), static_cast<std::int64_t>(matrix.cols)};
}

void CheckDTypeName(BufferName what, const ffi::AnyBuffer& buffer, std::string_view dtype) {
  if (DTypeNameOf(buffer) == dtype) return;
  throw InvalidArgument(
      fmt::format("{}: {} must be {}, got {}", what.verb, what.name, dtype, DTypeNameOf(buffer)));
}

std::byte* Bytes(const ffi::AnyBuffer& buffer) {
  return static_cast<std::byte*>(buffer.untyped_data());
}

}  // namespace

Shape ShapeOf(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {dims.begin(), dims.end()};
}

std::string_view DTypeNameOf(const ffi::AnyBuffer& buffer) {
  return NameOfType(buffer.element_type());
}

std::string_view ElementOf(BufferName what, const ffi::AnyBuffer& codes) {
  const std::string_view dtype = DTypeNameOf(codes);
  for (const ElementType& type : kElementTypes) {
    if (type.dtype == dtype) return type.element;
  }
  throw InvalidArgument(
      fmt::format("{}: {} must be an 8-bit or 4-bit float, got {}", what.verb, what.name, dtype));
}

ConstTensorView MatrixView(BufferName what, const ffi::AnyBuffer& buffer, MatrixShape matrix,
                           Device device) {
  return {Bytes(buffer), FloatType(what, buffer), ToShape(matrix), {}, device};
}

TensorView MutableMatrixView(BufferName what, ffi::AnyBuffer& buffer, MatrixShape matrix,
                             Device device) {
  const DType dtype = FloatType(what, buffer);
  CheckCount(what, buffer, matrix.Size());
  AdviseHugePages(buffer, device);
  return {Bytes(buffer), dtype, ToShape(matrix), {}, device};
}

ConstTensorView FlatView(BufferName what, const ffi::AnyBuffer& buffer, Device device) {
  const MatrixShape row{1, FlattenShape(ShapeOf(buffer)).Size()};
  return MatrixView(what, buffer, row, device);
}

TensorView FloatView(float* floats, std::size_t index, Device device) {
  return {reinterpret_cast<std::byte*>(floats + index), DType::kFloat32, {1}, {}, device};
}

void CheckDType(BufferName what, const ffi::AnyBuffer& buffer, ffi::DataType dtype) {
  CheckDTypeName(what, buffer, NameOfType(dtype));
}

void CheckCount(BufferName what, const ffi::AnyBuffer& buffer, std::size_t count) {
  if (buffer.element_count() == count) return;
  throw InvalidArgument(fmt::format("{}: {} must have {} items, got shape {}", what.verb, what.name,
                                    count, ShapeText(ShapeOf(buffer))));
}

const float* Floats(BufferName what, const ffi::AnyBuffer& buffer, std::size_t count) {
  CheckDType(what, buffer, ffi::F32);
  CheckCount(what, buffer, count);
  return static_cast<const float*>(buffer.untyped_data());
}

float* MutableFloats(BufferName what, ffi::AnyBuffer& buffer, std::size_t count) {
  Floats(what, buffer, count);
  return static_cast<float*>(buffer.untyped_data());
}

std::byte* Codes(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme,
                 std::size_t count) {
  const auto* type = std::ranges::find(kElementTypes, scheme.element, &ElementType::element);
  CheckDTypeName(what, buffer, type->dtype);
  CheckCount(what, buffer, count);
  return Bytes(buffer);
}

void CheckScaleDType(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme) {
  // E8M0 codes may have type uint8: older programs use it, because JAX had no dtype for them.
  const bool bytes = scheme.layout.scale_type == ScaleType::kE8M0;
  if (!bytes || buffer.element_type() != ffi::U8) CheckDTypeName(what, buffer, ScaleDType(scheme));
}

std::byte* Scales(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme,
                  std::size_t count) {
  CheckScaleDType(what, buffer, scheme);
  CheckCount(what, buffer, count);
  return Bytes(buffer);
}

std::size_t BytesOf(const ffi::AnyBuffer& buffer) {
  const std::size_t count = buffer.element_count();
  if (buffer.element_type() == ffi::F4E2M1FN) return CeilDiv(count, 2);
  return count * ffi::ByteWidth(buffer.element_type());
}

void AdviseHugePages(const ffi::AnyBuffer& buffer, Device device) {
  if (device == Device::kCpu) narrowfloat::AdviseHugePages(Bytes(buffer), BytesOf(buffer));
}

void ZeroFrom(const CallExecution& execution, ffi::AnyBuffer& buffer, std::size_t first) {
  const std::size_t bytes = BytesOf(buffer);
  if (first < bytes) ZeroBytes(execution, Bytes(buffer) + first, bytes - first);
}

}  // namespace narrowfloat::xla_ffi
