// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/plan.h"

#include <algorithm>

#include "narrowfloat/tensor/layout.h"

namespace narrowfloat {
namespace {

DType StoredType(ScaleType type) {
  return type == ScaleType::kFloat32 ? DType::kFloat32 : DType::kUInt8;
}

Shape CodesShape(const SchemeInfo& scheme, Direction direction, Shape shape) {
  if (direction == Direction::kColumnwise && scheme.layout.columnwise_transposed &&
      shape.size() > 1) {
    std::rotate(shape.begin(), shape.end() - 1, shape.end());
  }
  return shape;
}

Shape ScaleShape(const SchemeInfo& scheme, Direction direction, MatrixShape matrix) {
  if (scheme.layout.lines_per_scale == 0) return {1};
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

std::vector<BufferPlan> PlanQuantize(const QuantSpec& spec, const Shape& shape) {
  ValidateSpec(spec);
  const SchemeInfo& scheme = *spec.scheme;
  const MatrixShape matrix = FlattenShape(shape);
  const DType scale_type = StoredType(scheme.layout.scale_type);
  std::vector<BufferPlan> plan;
  const auto add = [&](Role role, DType dtype, Shape buffer_shape, Role storage) {
    plan.push_back({role, dtype, std::move(buffer_shape), storage});
  };
  const auto add_direction = [&](Direction direction, Role data, Role scale_inv,
                                 Role scale_storage) {
    add(data, DType::kUInt8, CodesShape(scheme, direction, shape), data);
    add(scale_inv, scale_type, ScaleShape(scheme, direction, matrix), scale_storage);
  };
  if (spec.rowwise) {
    add_direction(Direction::kRowwise, Role::kRowwiseData, Role::kRowwiseScaleInv,
                  Role::kRowwiseScaleInv);
  }
  if (spec.columnwise) {
    const bool shared = spec.rowwise && scheme.layout.lines_per_scale == 0;
    add_direction(Direction::kColumnwise, Role::kColumnwiseData, Role::kColumnwiseScaleInv,
                  shared ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv);
  }
  if (scheme.layout.stores_scale) add(Role::kScale, DType::kFloat32, {1}, Role::kScale);
  if (scheme.layout.amax != AmaxBuffers::kNone)
    add(Role::kAmaxRowwise, DType::kFloat32, {1}, Role::kAmaxRowwise);
  return plan;
}

std::size_t BufferBytes(const BufferPlan& buffer) {
  return FlattenShape(buffer.shape).Size() * ItemSize(buffer.dtype);
}

}  // namespace narrowfloat
