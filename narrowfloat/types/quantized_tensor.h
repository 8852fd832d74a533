// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "narrowfloat/types/quantized_tensor_storage.h"

namespace narrowfloat {

/// A storage with a tensor's interface: whole-tensor copies, and other shapes of the same buffers.
class QuantizedTensor : public QuantizedTensorStorage {
 public:
  using QuantizedTensorStorage::QuantizedTensorStorage;
  explicit QuantizedTensor(QuantizedTensorStorage&& storage)
      : QuantizedTensorStorage(std::move(storage)) {}

  /// Returns a tensor over the same buffers: writing to one changes the other.
  QuantizedTensor Alias() const { return QuantizedTensor(GetMetadata()); }

  /// Returns a copy with buffers of its own.
  QuantizedTensor Clone() const;

  /// Returns an alias with another nominal type.
  QuantizedTensor ToDType(DType dtype) const;

  /// Returns the same buffers under another shape; one dimension may be -1. The last dimension must
  /// not change, since blocks extend along it. With one scale for the whole tensor it may change,
  /// but the result then has no columnwise codes: they are the transpose of the old matrix. Errors:
  /// InvalidArgument if the element count differs or blocks would change; Unsupported if only
  /// columnwise codes are present.
  QuantizedTensor Reshape(const Shape& shape) const;
};

}  // namespace narrowfloat
