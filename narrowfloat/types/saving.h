// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "narrowfloat/types/owned_tensor.h"
#include "narrowfloat/types/quantized_tensor.h"

namespace narrowfloat {

/// A tensor to save: quantized, plain or null.
using SaveArgument = std::variant<std::nullptr_t, OwnedTensor*, QuantizedTensorStorage*>;

/// A restored tensor, of the kind that was saved; monostate for null.
using RestoredTensor = std::variant<std::monostate, OwnedTensor, QuantizedTensor>;

struct SavedTensors;
struct RestoredTensors;

/// Description of one saved tensor, without its buffers. Valid for one restore.
class SavedObject {
 public:
  SavedObject(SavedObject&&) = default;
  SavedObject& operator=(SavedObject&&) = default;

  /// Returns the number of the object's entries in the flat list: one for a plain tensor or null.
  std::size_t TensorCount() const;

 private:
  friend SavedTensors PrepareTensors(std::span<const SaveArgument> tensors);
  friend RestoredTensors RestoreFromSaved(std::span<SavedObject> objects,
                                          std::span<OwnedTensor> saved);

  struct Plain {
    bool present = false;
    DType dtype = DType::kUInt8;
    Shape shape;
  };

  SavedObject(const SaveArgument& tensor, std::vector<OwnedTensor>& buffers);
  static void CheckSavable(const SaveArgument& tensor);
  void CheckRestorable(std::size_t index, std::span<const OwnedTensor> saved) const;
  RestoredTensor Restore(std::span<OwnedTensor> saved);

  Plain plain_;
  std::optional<QuantizedTensorStorage> quantized_;  // without buffers; absent: plain_ is used
  bool restored_ = false;
};

/// A flat list of tensors that own their memory, and the objects that restore them.
struct SavedTensors {
  std::vector<OwnedTensor> buffers;
  std::vector<SavedObject> objects;  // one per argument
};

struct RestoredTensors {
  std::vector<RestoredTensor> tensors;
  std::span<OwnedTensor> rest;  // entries of the flat list that were not restored
};

/// Prepares a list of tensors as PrepareForSaving does.
SavedTensors PrepareTensors(std::span<const SaveArgument> tensors);

/// Moves the buffers of all tensors into one list, for a framework to keep between forward and
/// backward: `PrepareForSaving(&x, &q, nullptr)`. The tensors have no buffers afterwards. Errors:
/// InvalidArgument, before anything changes, for a tensor that is given twice or was already
/// prepared.
template <class... Tensor>
SavedTensors PrepareForSaving(Tensor... tensors) {
  const std::vector<SaveArgument> arguments{SaveArgument(tensors)...};
  return PrepareTensors(arguments);
}

/// Restores the tensors, moving their buffers out of `saved`. Errors: InvalidArgument, before
/// anything changes, if an object was already restored, if there are too few tensors, or if one has
/// another type or shape.
RestoredTensors RestoreFromSaved(std::span<SavedObject> objects, std::span<OwnedTensor> saved);

}  // namespace narrowfloat
