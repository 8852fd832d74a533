// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/shape.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Where every owned buffer begins: a cache line, which is also the widest vector.
inline constexpr std::size_t kBufferAlignment = 64;

/// From this many bytes on, huge pages are asked for, and the buffer begins on one.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// A C-contiguous tensor and the memory it lies in, or nothing (null). Moves; sharing memory is
/// never implicit: Share() makes a second handle, and the memory goes with the last one.
class OwnedTensor {
 public:
  OwnedTensor() = default;
  /// Memory for `shape`, not initialised. A tensor without elements is not null.
  /// Errors: InvalidArgument if the shape is not valid; std::bad_alloc.
  OwnedTensor(DType dtype, Shape shape);
  OwnedTensor(OwnedTensor&&) = default;
  OwnedTensor& operator=(OwnedTensor&&) = default;

  /// Another handle on the same memory.
  OwnedTensor Share() const;
  /// The same memory under another shape. Errors: InvalidArgument if the element count differs.
  OwnedTensor ShareAs(Shape shape) const;
  /// The same bytes in memory of their own.
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
