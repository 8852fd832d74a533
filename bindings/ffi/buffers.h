// SPDX-License-Identifier: Apache-2.0
// XLA's buffers as the core sees them, checked on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bindings/ffi/attributes.h"
#include "narrowfloat/tensor/view.h"
#include "xla/ffi/api/ffi.h"

namespace narrowfloat::xla_ffi {

namespace ffi = ::xla::ffi;

/// Says which buffer a message is about.
struct BufferName {
  const char* verb;
  const char* name;
};

Shape ShapeOf(const ffi::AnyBuffer& buffer);

/// JAX's name of the buffer's dtype, or "dtype N".
std::string_view DTypeNameOf(const ffi::AnyBuffer& buffer);

/// The element format of a buffer of codes. Errors: InvalidArgument if it holds none.
std::string_view ElementOf(BufferName what, const ffi::AnyBuffer& codes);

/// A float tensor seen as a matrix. Errors: InvalidArgument if it is none.
ConstTensorView MatrixView(BufferName what, const ffi::AnyBuffer& buffer, MatrixShape matrix);
TensorView MutableMatrixView(BufferName what, ffi::AnyBuffer& buffer, MatrixShape matrix);

/// A whole float tensor, flattened to one row.
ConstTensorView FlatView(BufferName what, const ffi::AnyBuffer& buffer);

/// Errors: InvalidArgument unless the buffer is of `dtype`, or holds `count` items.
void CheckDType(BufferName what, const ffi::AnyBuffer& buffer, ffi::DataType dtype);
void CheckCount(BufferName what, const ffi::AnyBuffer& buffer, std::size_t count);

/// The float32 items of a buffer that has to hold `count` of them.
const float* Floats(BufferName what, const ffi::AnyBuffer& buffer, std::size_t count);
float* MutableFloats(BufferName what, ffi::AnyBuffer& buffer, std::size_t count);

/// Memory of a buffer for codes of `scheme` or its stored scales, which has to hold `count` items
/// of that dtype; how many dimensions they are spread over is the caller's.
std::byte* Codes(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme,
                 std::size_t count);
std::byte* Scales(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme,
                  std::size_t count);
/// Errors: InvalidArgument unless the buffer is of the type that stores the scheme's scales.
void CheckScaleDType(BufferName what, const ffi::AnyBuffer& buffer, const SchemeInfo& scheme);

/// Bytes that XLA keeps for the buffer: of 4-bit items two lie in each, which its own count
/// forgets.
std::size_t BytesOf(const ffi::AnyBuffer& buffer);

/// Asks for huge pages under a large result: XLA's memory is fresh at nearly every call, and the
/// pages' first touch costs more than what is written to them. Advice: slower without, not wrong.
void AdviseHugePages(const ffi::AnyBuffer& buffer);

/// Zeroes a result from byte `first` on: XLA hands out memory as it is.
void ZeroFrom(ffi::AnyBuffer& buffer, std::size_t first = 0);

}  // namespace narrowfloat::xla_ffi
