// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/buffers.h"

#include <fmt/format.h>

#include <algorithm>

#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/ops/view_checks.h"
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
}

/// Checks the planned buffers; passes each buffer with memory of its own to `add`.
template <class Byte, class Add>
void VisitBuffers(const char* verb, const BasicQuantizedView<Byte>& view, const Add& add) {
  for (const BufferPlan& planned : PlanQuantize(view.spec, view.shape)) {
    CheckBuffer(verb, view, planned);
    const BasicTensorView<Byte>& buffer = view[planned.role];
    if (buffer.data == nullptr) continue;
    if (planned.storage != planned.role && buffer.data == view[planned.storage].data) continue;
    add(TensorName{RoleName(planned.role)}, buffer);
  }
}

}  // namespace

template <class Byte>
void CheckBuffers(const char* verb, const BasicQuantizedView<Byte>& view) {
  CallTensors call(verb);
  VisitBuffers(verb, view, [&](const TensorName& name, const auto& buffer) {
    call.Write(name, ExtentOf(buffer), buffer.device);
  });
  call.CheckDisjoint();
}

template void CheckBuffers(const char*, const QuantizedView&);
template void CheckBuffers(const char*, const ConstQuantizedView&);

namespace {

/// Checks those buffers of the direction for which wanted(role) is true.
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

/// Returns `name` with the role's name as its name if it has none.
TensorName NameOr(Role role, TensorName name) {
  if (name.name.empty()) name.name = RoleName(role);
  return name;
}

}  // namespace

void CheckScaledCodes(const char* verb, const ConstQuantizedView& view, Direction direction) {
  CheckRoles(verb, view, direction, [&](Role role) {
    return role == DataRole(direction) || role == ScaleInvRole(direction);
  });
}

void CheckDirection(const char* verb, const ConstQuantizedView& view, Direction direction) {
  CheckScaledCodes(verb, view, direction);
  if (!NeedsAmax(*view.spec.scheme)) return;
  CheckRoles(verb, view, direction, [&](Role role) { return role == AmaxRole(direction); });
}

void AddOutputs(const QuantizedView& view, const TensorName& name, CallTensors& call) {
  const auto& buffers = view.buffers;
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (buffers[i].data == nullptr || !HasRole(view.spec, static_cast<Role>(i))) continue;
    // Planned buffers that overlap are one memory: CheckBuffers has checked this.
    const auto shares = [&](const TensorView& earlier) {
      return HasRole(view.spec, static_cast<Role>(&earlier - buffers.data())) &&
             ExtentOf(earlier).Overlaps(ExtentOf(buffers[i]));
    };
    if (std::any_of(buffers.begin(), buffers.begin() + i, shares)) continue;
    call.Write(NameOr(static_cast<Role>(i), name), buffers[i]);
  }
}

void AddQuantizing(const char* verb, const ConstTensorView& in, const QuantizedView& out,
                   CallTensors& call) {
  VisitBuffers(verb, out,
               [&](const TensorName& name, const TensorView& buffer) { call.Write(name, buffer); });
  ValidateForQuantize(out.spec);
  CheckRows(verb, "the input", in);
  if (in.shape != out.shape) {
    throw InvalidArgument(fmt::format("{}: the output must have shape {} as the input has, got {}",
                                      verb, ShapeText(in.shape), ShapeText(out.shape)));
  }
  call.Read({"the input"}, in);
}

Direction AddDequantizing(const char* verb, const ConstQuantizedView& in, CallTensors& call) {
  CheckScheme(in.spec);
  Direction direction = Direction::kRowwise;
  if (!HasDirection(in, direction)) direction = Direction::kColumnwise;
  if (!HasDirection(in, direction)) {
    throw InvalidArgument(fmt::format(
        "{}: {} needs data and scale_inv of one direction, got neither rowwise nor columnwise",
        verb, in.spec.scheme->name));
  }
  CheckDirection(verb, in, direction);
  AddDirection(in, direction, {}, call);
  return direction;
}

void AddScaledCodes(const ConstQuantizedView& in, Direction direction, const TensorName& name,
                    CallTensors& call) {
  for (const Role role : {DataRole(direction), ScaleInvRole(direction)}) {
    if (in[role].data != nullptr) call.Read(NameOr(role, name), in[role]);
  }
}

void AddDirection(const ConstQuantizedView& in, Direction direction, const TensorName& name,
                  CallTensors& call) {
  AddScaledCodes(in, direction, name, call);
  const Role role = AmaxRole(direction);
  const ConstTensorView& amax = in[role];
  if (amax.data == nullptr) return;
  // If decoding needs no amax, it is not read, and CheckDirection does not check its shape. Its
  // device must still be that of the call, because backends pass its address to kernels.
  const Extent read = NeedsAmax(*in.spec.scheme) ? ExtentOf(amax) : Extent{};
  call.Read(NameOr(role, name), read, amax.device);
}

bool HasDirection(const ConstQuantizedView& view, Direction direction) {
  const ConstTensorView& data = view[DataRole(direction)];
  // Buffers of an empty tensor need no memory; an absent buffer has no shape either.
  if (FlattenShape(view.shape).Size() == 0) return !data.shape.empty();
  return data.data != nullptr && view[ScaleInvRole(direction)].data != nullptr;
}

}  // namespace narrowfloat
