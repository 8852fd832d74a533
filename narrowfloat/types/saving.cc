// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/types/saving.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

// TransformerEngine's order of a saved tensor's buffers, then the buffers that it does not store.
constexpr std::array kSaveOrder{
    Role::kRowwiseData, Role::kColumnwiseData, Role::kRowwiseScaleInv, Role::kColumnwiseScaleInv,
    Role::kScale,       Role::kAmaxRowwise,    Role::kAmaxColumnwise,
};
static_assert(kSaveOrder.size() == kRoleCount);

std::string Describe(const OwnedTensor& tensor) {
  if (!tensor) return "nothing";
  return fmt::format("{} of shape {}", DTypeName(tensor.dtype()), ShapeText(tensor.shape()));
}

const void* AddressOf(const SaveArgument& tensor) {
  return std::visit([](auto pointer) -> const void* { return pointer; }, tensor);
}

void CheckNamedOnce(std::span<const SaveArgument> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (AddressOf(tensors[i]) == nullptr || AddressOf(tensors[i]) != AddressOf(tensors[j]))
        continue;
      throw InvalidArgument(fmt::format(
          "prepare_for_saving: tensors must differ, got the same one at {} and {}", j, i));
    }
  }
}

}  // namespace

std::vector<OwnedTensor> QuantizedTensorStorage::PrepareForSaving() {
  RequireOwnership("prepare_for_saving");
  std::vector<OwnedTensor> handed_out;
  std::vector<BufferPlan> saved;
  if (state_ == State::kHolding) {
    const std::vector<BufferPlan> plan = PlanQuantize(spec_, shape_);
    for (const Role role : kSaveOrder) {
      const auto planned = std::ranges::find(plan, role, &BufferPlan::role);
      if (planned == plan.end() || planned->storage != role || !Has(role)) continue;
      saved.push_back(*planned);
      handed_out.push_back(BufferOf(buffers_, role).Share());
    }
  }
  buffers_ = {};
  saved_ = std::move(saved);
  state_when_saved_ = std::exchange(state_, State::kSaved);
  return handed_out;
}

void QuantizedTensorStorage::CheckRestorable(std::span<const OwnedTensor> saved) const {
  if (state_ != State::kSaved) {
    throw InvalidArgument(fmt::format(
        "restore_from_saved: the {} must be prepared for saving and not restored yet", Name()));
  }
  if (saved.size() < saved_.size()) {
    throw InvalidArgument(fmt::format("restore_from_saved: the {} needs {} buffers, got {}", Name(),
                                      saved_.size(), saved.size()));
  }
  for (std::size_t i = 0; i < saved_.size(); ++i) {
    const BufferPlan& wanted = saved_[i];
    if (saved[i] && saved[i].dtype() == wanted.dtype && saved[i].shape() == wanted.shape) continue;
    throw InvalidArgument(fmt::format(
        "restore_from_saved: {} of the {} must be {} of shape {}, got {}", RoleName(wanted.role),
        Name(), DTypeName(wanted.dtype), ShapeText(wanted.shape), Describe(saved[i])));
  }
}

std::span<OwnedTensor> QuantizedTensorStorage::RestoreFromSaved(std::span<OwnedTensor> saved) {
  CheckRestorable(saved);
  for (std::size_t i = 0; i < saved_.size(); ++i) {
    BufferOf(buffers_, saved_[i].role) = std::move(saved[i]);
  }
  const std::size_t taken = std::exchange(saved_, {}).size();
  state_ = state_when_saved_;
  if (state_ == State::kHolding) LinkShared(PlanQuantize(spec_, shape_), buffers_);
  return saved.subspan(taken);
}

SavedObject::SavedObject(const SaveArgument& tensor, std::vector<OwnedTensor>& buffers) {
  if (auto* const* quantized = std::get_if<QuantizedTensorStorage*>(&tensor);
      quantized != nullptr && *quantized != nullptr) {
    std::ranges::move((*quantized)->PrepareForSaving(), std::back_inserter(buffers));
    quantized_ = QuantizedTensorStorage(QuantizedTensorStorage::EmptyCopy{}, **quantized);
    return;
  }
  OwnedTensor moved;
  if (auto* const* plain = std::get_if<OwnedTensor*>(&tensor);
      plain != nullptr && *plain != nullptr) {
    moved = std::move(**plain);
  }
  plain_ = {static_cast<bool>(moved), moved.dtype(), moved.shape()};
  buffers.push_back(std::move(moved));
}

void SavedObject::CheckSavable(const SaveArgument& tensor) {
  auto* const* quantized = std::get_if<QuantizedTensorStorage*>(&tensor);
  if (quantized != nullptr && *quantized != nullptr) {
    (*quantized)->RequireOwnership("prepare_for_saving");
  }
}

std::size_t SavedObject::TensorCount() const {
  return quantized_ ? quantized_->saved_.size() : 1;
}

void SavedObject::CheckRestorable(std::size_t index, std::span<const OwnedTensor> saved) const {
  if (restored_) {
    throw InvalidArgument(
        fmt::format("restore_from_saved: tensor {} must not be restored twice", index));
  }
  if (quantized_) return quantized_->CheckRestorable(saved);
  if (saved.empty()) {
    throw InvalidArgument(
        fmt::format("restore_from_saved: tensor {} needs 1 buffer, got 0", index));
  }
  const OwnedTensor& got = saved.front();
  if (static_cast<bool>(got) == plain_.present &&
      (!got || (got.dtype() == plain_.dtype && got.shape() == plain_.shape))) {
    return;
  }
  const std::string wanted = plain_.present ? fmt::format("{} of shape {}", DTypeName(plain_.dtype),
                                                          ShapeText(plain_.shape))
                                            : "nothing";
  throw InvalidArgument(fmt::format("restore_from_saved: tensor {} must be {}, got {}", index,
                                    wanted, Describe(got)));
}

RestoredTensor SavedObject::Restore(std::span<OwnedTensor> saved) {
  restored_ = true;
  if (quantized_) {
    quantized_->RestoreFromSaved(saved);
    return QuantizedTensor(std::move(*quantized_));
  }
  if (!plain_.present) return std::monostate{};
  return std::move(saved.front());
}

SavedTensors PrepareTensors(std::span<const SaveArgument> tensors) {
  CheckNamedOnce(tensors);
  for (const SaveArgument& tensor : tensors) SavedObject::CheckSavable(tensor);
  SavedTensors saved;
  for (const SaveArgument& tensor : tensors) {
    saved.objects.push_back(SavedObject(tensor, saved.buffers));
  }
  return saved;
}

RestoredTensors RestoreFromSaved(std::span<SavedObject> objects, std::span<OwnedTensor> saved) {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    objects[i].CheckRestorable(i, saved.subspan(std::min(offset, saved.size())));
    offset += objects[i].TensorCount();
  }
  RestoredTensors restored{{}, saved};
  restored.tensors.reserve(objects.size());
  for (SavedObject& object : objects) {
    const std::size_t taken = object.TensorCount();
    restored.tensors.push_back(object.Restore(restored.rest));
    restored.rest = restored.rest.subspan(taken);
  }
  return restored;
}

}  // namespace narrowfloat
