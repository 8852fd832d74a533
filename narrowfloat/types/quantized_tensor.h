// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "narrowfloat/types/quantized_tensor_storage.h"

namespace narrowfloat {

/// A storage with the face of a tensor: whole-tensor copies, and other shapes of the same buffers.
class QuantizedTensor : public QuantizedTensorStorage {
 public:
  using QuantizedTensorStorage::QuantizedTensorStorage;
  explicit QuantizedTensor(QuantizedTensorStorage&& storage)
      : QuantizedTensorStorage(std::move(storage)) {}

  /// A tensor over the same buffers: what one writes, the other reads.
  QuantizedTensor Alias() const { return QuantizedTensor(GetMetadata()); }

  /// The same bytes in buffers of its own.
  QuantizedTensor Clone() const;

  /// An alias with another nominal type.
  QuantizedTensor ToDType(DType dtype) const;

  /// The same buffers under another shape; one dimension may be -1. The last dimension stays, since
  /// blocks lie along it; with one scale for the whole tensor it may change too, and then
  /// columnwise codes, which are the transpose of the old matrix, are left behind. Errors:
  /// InvalidArgument if the element count differs or blocks would be cut anew; Unsupported if
  /// columnwise codes are all there is.
  QuantizedTensor Reshape(const Shape& shape) const;
};

}  // namespace narrowfloat
