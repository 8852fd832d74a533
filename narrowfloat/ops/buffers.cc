// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/buffers.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/strided_rows.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

template <class Byte>
void CheckBuffer(const char* verb, const BasicQuantizedView<Byte>& view,
                 const BufferPlan& planned) {
  const BasicTensorView<Byte>& buffer = view[planned.role];
  const std::string_view name = RoleName(planned.role);
  if (buffer.data == nullptr && BufferBytes(planned) > 0) {
    throw InvalidArgument(fmt::format("{}: {} is missing", verb, name));
  }
  if (buffer.dtype != planned.dtype) {
    throw InvalidArgument(fmt::format("{}: {} must be {}, got {}", verb, name,
                                      DTypeName(planned.dtype), DTypeName(buffer.dtype)));
  }
  if (buffer.shape != planned.shape) {
    throw InvalidArgument(fmt::format("{}: {} must have shape {}, got {}", verb, name,
                                      ShapeText(planned.shape), ShapeText(buffer.shape)));
  }
  if (!IsContiguous(buffer)) {
    throw InvalidArgument(fmt::format("{}: {} must be C-contiguous", verb, name));
  }
  if (buffer.device != Device::kCpu) {
    throw Unsupported(
        fmt::format("{}: {} must be in CPU memory, got memory of another device", verb, name));
  }
}

/// Checks overlaps: two buffers may share memory only if the plan says so.
template <class Byte>
void CheckBuffersAreDisjoint(const char* verb, const BasicQuantizedView<Byte>& view,
                             const std::vector<BufferPlan>& plan) {
  std::array<Extent, kRoleCount> extents;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    extents[i] = ExtentOf(view[plan[i].role]);
    for (std::size_t j = 0; j < i; ++j) {
      const Extent &a = extents[i], &b = extents[j];
      if (!a.Overlaps(b) || (plan[i].storage == plan[j].storage && a.begin == b.begin)) continue;
      RefuseOverlap(verb, RoleName(plan[j].role), RoleName(plan[i].role));
    }
  }
}

}  // namespace

template <class Byte>
void CheckBuffers(const char* verb, const BasicQuantizedView<Byte>& view) {
  const std::vector<BufferPlan> plan = PlanQuantize(view.spec, view.shape);
  for (const BufferPlan& planned : plan) CheckBuffer(verb, view, planned);
  CheckBuffersAreDisjoint(verb, view, plan);
}

template void CheckBuffers(const char*, const QuantizedView&);
template void CheckBuffers(const char*, const ConstQuantizedView&);

namespace {

/// Checks the buffers of the direction that `wanted` selects.
template <class Wanted>
void CheckRoles(const char* verb, const ConstQuantizedView& view, Direction direction,
                const Wanted& wanted) {
  QuantSpec spec = view.spec;
  spec.rowwise = direction == Direction::kRowwise;
  spec.columnwise = !spec.rowwise;
  for (const BufferPlan& planned : PlanQuantize(spec, view.shape)) {
    if (wanted(planned.role)) CheckBuffer(verb, view, planned);
  }
}

}  // namespace

void CheckScaledCodes(const char* verb, const ConstQuantizedView& view, Direction direction) {
  CheckRoles(verb, view, direction, [&](Role role) {
    return role == DataRole(direction) || role == ScaleInvRole(direction);
  });
}

void CheckDirection(const char* verb, const ConstQuantizedView& view, Direction direction) {
  CheckScaledCodes(verb, view, direction);
  if (view.spec.scheme->layout.amax != AmaxBuffers::kPerDirection) return;
  CheckRoles(verb, view, direction, [&](Role role) { return role == AmaxRole(direction); });
}

bool HasDirection(const ConstQuantizedView& view, Direction direction) {
  const ConstTensorView& data = view[DataRole(direction)];
  // Buffers of an empty tensor need no memory; an absent buffer has no shape either.
  if (FlattenShape(view.shape).Size() == 0) return !data.shape.empty();
  return data.data != nullptr && view[ScaleInvRole(direction)].data != nullptr;
}

}  // namespace narrowfloat
