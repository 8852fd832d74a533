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

/// A tensor to save: quantized, plain, or none.
using SaveArgument = std::variant<std::nullptr_t, OwnedTensor*, QuantizedTensorStorage*>;

/// A tensor that came back, of the kind that was saved; none comes back as none.
using RestoredTensor = std::variant<std::monostate, OwnedTensor, QuantizedTensor>;

struct SavedTensors;
struct RestoredTensors;

/// What one tensor was, without its buffers. Good for one restore.
class SavedObject {
 public:
  SavedObject(SavedObject&&) = default;
  SavedObject& operator=(SavedObject&&) = default;

  /// Entries of the flat list that are its own: one for a plain tensor and for none.
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
  std::optional<QuantizedTensorStorage> quantized_;  // an empty one; else plain_ counts
  bool restored_ = false;
};

/// A flat list of tensors that own their memory, and what makes tensors of them again.
struct SavedTensors {
  std::vector<OwnedTensor> buffers;
  std::vector<SavedObject> objects;  // one an argument
};

struct RestoredTensors {
  std::vector<RestoredTensor> tensors;
  std::span<OwnedTensor> rest;  // of the flat list, not consumed
};

SavedTensors PrepareTensors(std::span<const SaveArgument> tensors);

/// Moves the buffers of all tensors into one list, as a framework keeps it between forward and
/// backward: `PrepareForSaving(&x, &q, nullptr)`. A tensor named here holds nothing afterwards.
/// Errors: InvalidArgument, before anything changes, for a tensor that is named twice, or was
/// prepared already.
template <class... Tensor>
SavedTensors PrepareForSaving(Tensor... tensors) {
  const std::vector<SaveArgument> arguments{SaveArgument(tensors)...};
  return PrepareTensors(arguments);
}

/// Makes the tensors again, moving their buffers out of `saved`. Errors: InvalidArgument, before
/// anything changes, if an object was restored already, or tensors are too few or of another type
/// or shape.
RestoredTensors RestoreFromSaved(std::span<SavedObject> objects, std::span<OwnedTensor> saved);

}  // namespace narrowfloat
