// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {
namespace {

static_assert(
    std::ranges::all_of(kSchemes,
                        [](const SchemeInfo& scheme) {
                          return scheme.element_bits == 4 || scheme.element_bits == 8;
                        }),
    "the element format of a scheme must have codes of 4 or 8 bits: no kernel packs codes "
    "of another width into bytes");

/// Checks that codes fill whole bytes, and rows whole groups of the Hadamard transform. An empty
/// tensor may have more than kMaxElements columns, unless columnwise buffers store them as rows.
void CheckShape(const QuantSpec& spec, const Shape& shape, MatrixShape matrix) {
  if (spec.columnwise && matrix.cols > static_cast<std::size_t>(kMaxElements)) {
    throw InvalidArgument(
        fmt::format("shape: {} has more columns than memory can address", ShapeText(shape)));
  }
  if (matrix.Size() == 0) return;
  const SchemeInfo& scheme = *spec.scheme;
  const std::size_t per_byte = CodesPerByte(scheme.element_bits);
  const auto check_even = [&](std::size_t length, const char* what) {
    if (length % per_byte == 0) return;
    throw InvalidArgument(
        fmt::format("quantize: {} packs two codes in a byte and needs an even number of {}, got {}",
                    scheme.name, what, length));
  };
  if (spec.rowwise) check_even(matrix.cols, "columns");
  if (!spec.columnwise) return;
  check_even(matrix.rows, "rows for its columnwise codes");
  if (spec.rht && matrix.rows % kHadamardSize != 0) {
    throw InvalidArgument(
        fmt::format("quantize: rht needs a number of rows that is a multiple of {}, got {}",
                    kHadamardSize, matrix.rows));
  }
}

DType StoredType(ScaleType type) {
  return type == ScaleType::kFloat32 ? DType::kFloat32 : DType::kUInt8;
}

Shape CodesShape(const SchemeInfo& scheme, Direction direction, Shape shape) {
  if (direction == Direction::kColumnwise && scheme.layout.columnwise_transposed &&
      shape.size() > 1) {
    std::rotate(shape.begin(), shape.end() - 1, shape.end());
  }
  const auto per_byte = static_cast<std::int64_t>(CodesPerByte(scheme.element_bits));
  if (per_byte > 1 && (shape.empty() || shape.back() % per_byte != 0)) {
    const std::int64_t first = shape.empty() ? 1 : shape.front();
    const auto size = static_cast<std::int64_t>(FlattenShape(shape).Size());
    shape = {first, first == 0 ? 0 : size / first};
  }
  if (per_byte > 1) shape.back() /= per_byte;
  return shape;
}

Shape ScaleShape(const SchemeInfo& scheme, Direction direction, MatrixShape matrix) {
  if (scheme.HasOneScale()) return {1};
  const MatrixShape stored = MakeScaleGrid(scheme, direction, matrix).StoredShape();
  return {static_cast<std::int64_t>(stored.rows), static_cast<std::int64_t>(stored.cols)};
}

}  // namespace

std::string_view RoleName(Role role) {
  static constexpr std::string_view kNames[kRoleCount] = {
      "rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv",
      "scale",        "amax_rowwise",      "amax_columnwise",
  };
  return kNames[static_cast<std::size_t>(role)];
}

bool HasRole(const QuantSpec& spec, Role role) {
  const SchemeLayout& layout = spec.scheme->layout;
  const bool each = layout.amax == AmaxBuffers::kPerDirection;
  switch (role) {
    case Role::kRowwiseData:
    case Role::kRowwiseScaleInv:
      return spec.rowwise;
    case Role::kColumnwiseData:
    case Role::kColumnwiseScaleInv:
      return spec.columnwise;
    case Role::kScale:
      return layout.stores_scale;
    case Role::kAmaxRowwise:
      return layout.amax == AmaxBuffers::kOne || (each && spec.rowwise);
    case Role::kAmaxColumnwise:
      return each && spec.columnwise;
  }
  return false;
}

std::vector<BufferPlan> PlanQuantize(const QuantSpec& spec, const Shape& shape) {
  ValidateSpec(spec);
  const SchemeInfo& scheme = *spec.scheme;
  const MatrixShape matrix = FlattenShape(shape);
  CheckShape(spec, shape, matrix);
  const DType scale_type = StoredType(scheme.layout.scale_type);
  std::vector<BufferPlan> plan;
  plan.reserve(kRoleCount);
  const auto add = [&](Role role, DType dtype, Shape buffer_shape, Role storage) {
    plan.push_back({role, dtype, std::move(buffer_shape), storage});
  };
  const auto add_direction = [&](Direction direction, Role data, Role scale_inv,
                                 Role scale_storage) {
    add(data, DType::kUInt8, CodesShape(scheme, direction, shape), data);
    add(scale_inv, scale_type, ScaleShape(scheme, direction, matrix), scale_storage);
  };
  if (HasRole(spec, Role::kRowwiseData)) {
    add_direction(Direction::kRowwise, Role::kRowwiseData, Role::kRowwiseScaleInv,
                  Role::kRowwiseScaleInv);
  }
  if (HasRole(spec, Role::kColumnwiseData)) {
    const bool shared = spec.rowwise && scheme.HasOneScale();
    add_direction(Direction::kColumnwise, Role::kColumnwiseData, Role::kColumnwiseScaleInv,
                  shared ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv);
  }
  if (HasRole(spec, Role::kScale)) add(Role::kScale, DType::kFloat32, {1}, Role::kScale);
  const auto amax_shape = [&](std::size_t lines) -> Shape {
    return {spec.row_scaled ? static_cast<std::int64_t>(lines) : 1};
  };
  if (HasRole(spec, Role::kAmaxRowwise))
    add(Role::kAmaxRowwise, DType::kFloat32, amax_shape(matrix.rows), Role::kAmaxRowwise);
  if (HasRole(spec, Role::kAmaxColumnwise))
    add(Role::kAmaxColumnwise, DType::kFloat32, amax_shape(matrix.cols), Role::kAmaxColumnwise);
  return plan;
}

std::size_t BufferBytes(const BufferPlan& buffer) {
  return FlattenShape(buffer.shape).Size() * ItemSize(buffer.dtype);
}

}  // namespace narrowfloat
