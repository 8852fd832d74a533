// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/shape.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// A C-contiguous tensor that owns its memory, or nothing (null). Buffers are aligned to a cache
/// line, which is also the widest vector; those of at least kHugePage bytes use huge pages and are
/// aligned to one. Movable; memory is never shared implicitly: Share() makes a second handle, and
/// the last handle frees the memory.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  /// Allocates memory for `shape`, not initialised. A tensor without elements is not null.
  /// Errors: InvalidArgument if the shape is not valid; std::bad_alloc.
  OwnedTensor(DType dtype, Shape shape);
  OwnedTensor(OwnedTensor&&) = default;
  OwnedTensor& operator=(OwnedTensor&&) = default;

  /// Returns another handle to the same memory.
  OwnedTensor Share() const;
  /// Returns the same memory under another shape. Errors: InvalidArgument if element counts differ.
  OwnedTensor ShareAs(Shape shape) const;
  /// Returns a copy in memory of its own.
  OwnedTensor Clone() const;

  explicit operator bool() const { return memory_ != nullptr; }
  bool SharesMemoryWith(const OwnedTensor& other) const {
    return memory_ != nullptr && memory_ == other.memory_;
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t Bytes() const;
  std::byte* data() { return memory_.get(); }
  const std::byte* data() const { return memory_.get(); }
  void FillZero();

  TensorView View();
  ConstTensorView ConstView() const;

 private:
  OwnedTensor(DType dtype, Shape shape, std::shared_ptr<std::byte> memory);

  DType dtype_ = DType::kUInt8;
  Shape shape_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace narrowfloat
