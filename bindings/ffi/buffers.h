// SPDX-License-Identifier: Apache-2.0
// Converts XLA's buffers to the core's views, with checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bindings/ffi/attributes.h"
#include "bindings/ffi/platform.h"
#include "narrowfloat/tensor/view.h"
#include "xla/ffi/api/ffi.h"

namespace narrowfloat::xla_ffi {

namespace ffi = ::xla::ffi;

/// Names a buffer in messages.
struct BufferName {
  const char* verb;
  const char* name;
};

Shape ShapeOf(const ffi::AnyBuffer& buffer);

/// Returns JAX's name of the buffer's dtype, or "another dtype".
std::string_view DTypeNameOf(const ffi::AnyBuffer& buffer);

/// Returns the element format of a buffer of codes. Errors: InvalidArgument for another dtype.
std::string_view ElementOf(BufferName what, const ffi::AnyBuffer& codes);

/// Returns a float tensor as a matrix: MatrixView the first items, MutableMatrixView all items.
/// Errors: InvalidArgument if the buffer is not of floats; MutableMatrixView also if it has another
/// number of items.
ConstTensorView MatrixView(BufferName what, const ffi::AnyBuffer& buffer, MatrixShape matrix,
                           Device device = Device::kCpu);
TensorView MutableMatrixView(BufferName what, ffi::AnyBuffer& buffer, MatrixShape matrix,
                             Device device = Device::kCpu);

/// Returns a complete float tensor, flattened to one row.
ConstTensorView FlatView(BufferName what, const ffi::AnyBuffer& buffer,
                         Device device = Device::kCpu);

/// Returns item `index` of a buffer of floats as a tensor of shape [1].
TensorView FloatView(float* floats, std::size_t index, Device device);

/// Checks a buffer. Errors: InvalidArgument unless it is of `dtype`, or has `count` items.
void CheckDType(BufferName what, const ffi::AnyBuffer& buffer, ffi::DataType dtype);
void CheckCount(BufferName what, const ffi::AnyBuffer& buffer, std::size_t count);

/// Returns the items of a buffer, in the memory of the call's device. Errors: InvalidArgument
/// unless it has `count` float32 items.
const float* Floats(BufferName what, const ffi::AnyBuffer& buffer, std::size_t count);
float* MutableFloats(BufferName what, ffi::AnyBuffer& buffer, std::size_t count);

/// Returns the memory of a buffer for codes of `scheme` or its stored scales. Errors:
/// InvalidArgument unless it has that dtype and `count` items, in any number of dimensions.
std::byte* Codes(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme,
                 std::size_t count);
std::byte* Scales(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme,
                  std::size_t count);
/// Checks a buffer. Errors: InvalidArgument unless it has the dtype of the scheme's stored scales.
void CheckScaleDType(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme);

/// Returns the bytes of XLA's buffer. 4-bit items are stored two per byte; XLA's own count ignores
/// this.
std::size_t BytesOf(const ffi::AnyBuffer& buffer);

/// Requests huge pages for a large result on the CPU: XLA's memory is new in nearly every call,
/// and its page faults take longer than writing the data. Only a hint: without it calls are
/// slower.
void AdviseHugePages(const ffi::AnyBuffer& buffer, Device device = Device::kCpu);

/// Zeroes a result from byte `first` on: XLA does not initialise results.
void ZeroFrom(const CallExecution& execution, ffi::AnyBuffer& buffer, std::size_t first = 0);

}  // namespace narrowfloat::xla_ffi
