// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/quantized_tensor_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "narrowfloat/ops/buffers.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/derive_columnwise.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

std::vector<BufferPlan> PlanOf(const QuantSpec& spec, const Shape& shape) {
  if (!spec.rowwise && !spec.columnwise) return {};
  return PlanQuantize(spec, shape);
}

void CheckNominal(DType dtype) {
  if (IsFloat(dtype)) return;
  throw InvalidArgument(fmt::format(
      "quantized_tensor: the nominal type must be a float type, got {}", DTypeName(dtype)));
}

/// Returns true if columnwise buffers can be computed from rowwise ones with compact scales.
bool CanDeriveColumnwise(const QuantSpec& spec) {
  return DerivesColumnwise(*spec.scheme) && !spec.swizzled;
}

template <class View, class Buffers>
View ViewOf(const QuantSpec& spec, const Shape& shape, Buffers& buffers) {
  View view{spec, shape, {}};
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if constexpr (std::is_same_v<View, QuantizedView>) {
      view.buffers[i] = buffers[i].View();
    } else {
      view.buffers[i] = buffers[i].ConstView();
    }
  }
  return view;
}

}  // namespace

QuantizedTensorStorage::QuantizedTensorStorage(const QuantSpec& spec, Shape shape, DType dtype)
    : spec_(spec), shape_(std::move(shape)), dtype_(dtype) {
  CheckNominal(dtype_);
  AllocateMissing(PlanQuantize(spec_, shape_), buffers_);
}

QuantizedTensorStorage::QuantizedTensorStorage(QuantizedTensorMetadata metadata)
    : spec_(metadata.spec), shape_(std::move(metadata.shape)), dtype_(metadata.dtype) {
  CheckNominal(dtype_);
  const std::vector<BufferPlan> plan = PlanQuantize(spec_, shape_);
  CheckOwnedBuffers(plan, metadata.buffers);
  buffers_ = std::move(metadata.buffers);
  LinkShared(plan, buffers_);
}

QuantizedTensorStorage::QuantizedTensorStorage(EmptyCopy, const QuantizedTensorStorage& saved)
    : spec_(saved.spec_),
      shape_(saved.shape_),
      dtype_(saved.dtype_),
      state_(saved.state_),
      state_when_saved_(saved.state_when_saved_),
      saved_(saved.saved_) {}

QuantizedTensorStorage::QuantizedTensorStorage(QuantizedTensorStorage&& other) noexcept
    : spec_(other.spec_),
      shape_(std::move(other.shape_)),
      dtype_(other.dtype_),
      buffers_(std::move(other.buffers_)),
      state_(std::exchange(other.state_, State::kMovedFrom)),
      state_when_saved_(other.state_when_saved_),
      saved_(std::move(other.saved_)) {}

QuantizedTensorStorage& QuantizedTensorStorage::operator=(QuantizedTensorStorage&& other) noexcept {
  if (this == &other) return *this;
  spec_ = other.spec_;
  shape_ = std::move(other.shape_);
  dtype_ = other.dtype_;
  buffers_ = std::move(other.buffers_);
  state_ = std::exchange(other.state_, State::kMovedFrom);
  state_when_saved_ = other.state_when_saved_;
  saved_ = std::move(other.saved_);
  return *this;
}

std::string QuantizedTensorStorage::Name() const {
  if (state_ == State::kMovedFrom) return fmt::format("{} tensor", spec_.scheme->name);
  return fmt::format("{} tensor of shape {}", spec_.scheme->name, ShapeText(shape_));
}

void QuantizedTensorStorage::RequireBuffers(const char* verb) const {
  static constexpr const char* kReasons[] = {"", "was prepared for saving", "was cleared",
                                             "dropped both directions", "was moved from"};
  if (state_ == State::kHolding) return;
  throw InvalidArgument(fmt::format("{}: the {} {} and holds no buffers", verb, Name(),
                                    kReasons[static_cast<std::size_t>(state_)]));
}

void QuantizedTensorStorage::RequireOwnership(const char* verb) const {
  if (state_ == State::kSaved || state_ == State::kMovedFrom) RequireBuffers(verb);
}

QuantizedView QuantizedTensorStorage::View() {
  RequireBuffers("view");
  return ViewOf<QuantizedView>(spec_, shape_, buffers_);
}

ConstQuantizedView QuantizedTensorStorage::ConstView() const {
  RequireBuffers("view");
  return ViewOf<ConstQuantizedView>(spec_, shape_, buffers_);
}

QuantizedTensorMetadata QuantizedTensorStorage::GetMetadata() const {
  RequireBuffers("get_metadata");
  return {spec_, shape_, dtype_, ShareBuffers(buffers_)};
}

void QuantizedTensorStorage::Clear() {
  if (state_ != State::kHolding) return;
  buffers_ = {};
  state_ = State::kCleared;
}

OwnedBuffers QuantizedTensorStorage::DeriveColumnwise(const Execution& execution) const {
  QuantSpec both = spec_;
  both.columnwise = true;
  const std::vector<BufferPlan> plan = PlanQuantize(both, shape_);
  OwnedBuffers derived = ShareBuffers(buffers_);
  const OwnedTensor& rowwise_amax = BufferOf(derived, Role::kAmaxRowwise);
  for (const BufferPlan& planned : plan) {
    const bool is_derived = planned.role == Role::kColumnwiseData ||
                            planned.role == Role::kColumnwiseScaleInv ||
                            (planned.role == Role::kAmaxColumnwise && rowwise_amax);
    if (is_derived && planned.storage == planned.role)
      BufferOf(derived, planned.role) = {planned.dtype, planned.shape};
  }
  LinkShared(plan, derived);
  narrowfloat::DeriveColumnwise(ViewOf<ConstQuantizedView>(both, shape_, derived),
                                ViewOf<QuantizedView>(both, shape_, derived), execution);
  OwnedTensor& columnwise_amax = BufferOf(derived, Role::kAmaxColumnwise);
  if (columnwise_amax)
    std::memcpy(columnwise_amax.data(), rowwise_amax.data(), rowwise_amax.Bytes());
  return derived;
}

void QuantizedTensorStorage::UpdateUsage(std::optional<bool> rowwise,
                                         std::optional<bool> columnwise,
                                         const Execution& execution) {
  if (state_ != State::kDropped) RequireBuffers("update_usage");
  const bool want_rowwise = rowwise.value_or(spec_.rowwise);
  const bool want_columnwise = columnwise.value_or(spec_.columnwise);
  const auto refuse = [&](const char* wanted) {
    throw InvalidArgument(fmt::format(
        "update_usage: the {} needs {} buffers, which cannot be derived from the others", Name(),
        wanted));
  };
  if (want_rowwise && !spec_.rowwise) refuse("rowwise");
  if (want_columnwise && !spec_.columnwise) {
    if (!spec_.rowwise || !CanDeriveColumnwise(spec_)) refuse("columnwise");
    buffers_ = DeriveColumnwise(execution);
  }
  spec_.rowwise = want_rowwise;
  spec_.columnwise = want_columnwise;
  const std::vector<BufferPlan> plan = PlanOf(spec_, shape_);
  for (std::size_t i = 0; i < kRoleCount; ++i) {
    if (std::ranges::count(plan, static_cast<Role>(i), &BufferPlan::role) == 0) buffers_[i] = {};
  }
  if (plan.empty()) state_ = State::kDropped;
}

OwnedTensor QuantizedTensorStorage::Dequantize(std::optional<DType> dtype,
                                               const Execution& execution) const {
  RequireBuffers("dequantize");
  OwnedTensor out(dtype.value_or(dtype_), shape_);
  Dequantize(out.View(), execution);
  return out;
}

void QuantizedTensorStorage::Dequantize(const TensorView& out, const Execution& execution) const {
  RequireBuffers("dequantize");
  narrowfloat::Dequantize(ConstView(), out, execution);
}

}  // namespace narrowfloat
