// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>

#include "narrowfloat/ops/call_tensors.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

constexpr Role DataRole(Direction direction) {
  return direction == Direction::kRowwise ? Role::kRowwiseData : Role::kColumnwiseData;
}
constexpr Role ScaleInvRole(Direction direction) {
  return direction == Direction::kRowwise ? Role::kRowwiseScaleInv : Role::kColumnwiseScaleInv;
}

constexpr Role AmaxRole(Direction direction) {
  return direction == Direction::kRowwise ? Role::kAmaxRowwise : Role::kAmaxColumnwise;
}

/// Returns true if decoding a scheme's codes needs an amax.
constexpr bool NeedsAmax(const SchemeInfo& scheme) {
  return scheme.layout.amax == AmaxBuffers::kPerDirection;
}

/// Returns true if the view has the codes and scales of a direction.
bool HasDirection(const ConstQuantizedView& view, Direction direction);

/// Returns true if the view has buffers that the plan of `spec` does not have. These are not
/// checked, and backends must not receive them.
template <class Byte>
bool HasUnplanned(const QuantSpec& spec, const BasicQuantizedView<Byte>& view) {
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (view.buffers[i].data != nullptr && !HasRole(spec, static_cast<Role>(i))) return true;
  }
  return false;
}

/// Removes unplanned buffers from the view.
template <class Byte>
void RemoveUnplanned(const QuantSpec& spec, BasicQuantizedView<Byte>& view) {
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (!HasRole(spec, static_cast<Role>(i))) view.buffers[i] = {};
  }
}

/// A view without its unplanned buffers. Copies the view only if it has some.
template <class Byte>
class PlannedView {
 public:
  /// Keeps `view` by reference. Requires: ValidateSpec accepts `spec`.
  PlannedView(const BasicQuantizedView<Byte>& view, const QuantSpec& spec) : given_(view) {
    if (HasUnplanned(spec, view)) RemoveUnplanned(spec, changed_.emplace(view));
  }
  explicit PlannedView(const BasicQuantizedView<Byte>& view) : PlannedView(view, view.spec) {}

  const BasicQuantizedView<Byte>& operator*() const { return changed_ ? *changed_ : given_; }

 private:
  const BasicQuantizedView<Byte>& given_;
  std::optional<BasicQuantizedView<Byte>> changed_;
};

/// Checks codes and scales of one direction, as CheckBuffers checks all buffers.
void CheckScaledCodes(const char* verb, const ConstQuantizedView& view, Direction direction);

/// Checks codes and scales of one direction, and the amax if decoding needs it.
void CheckDirection(const char* verb, const ConstQuantizedView& view, Direction direction);

/// Adds the codes and scales of one direction to the tensors that a call reads. If name.name is
/// empty, the role's name replaces it. Requires: CheckScaledCodes accepts the view.
void AddScaledCodes(const ConstQuantizedView& in, Direction direction, const TensorName& name,
                    CallTensors& call);

/// Adds codes, scales and the amax. Requires: CheckDirection accepts the view.
void AddDirection(const ConstQuantizedView& in, Direction direction, const TensorName& name,
                  CallTensors& call);

/// Adds the planned buffers of `view` to the tensors that a call writes. If name.name is empty, the
/// role's name replaces it. Requires: CheckBuffers accepts the view.
void AddOutputs(const QuantizedView& view, const TensorName& name, CallTensors& call);

/// Checks the arguments of quantizing `in` to `out`, except for overlaps, and adds the tensors to
/// `call`. Errors: as Quantize.
void AddQuantizing(const char* verb, const ConstTensorView& in, const QuantizedView& out,
                   CallTensors& call);

/// Checks the argument that a verb dequantizes, adds the buffers that are read to `call`, and
/// returns their direction. Errors: as Dequantize.
Direction AddDequantizing(const char* verb, const ConstQuantizedView& in, CallTensors& call);

}  // namespace narrowfloat
