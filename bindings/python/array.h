// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "bindings/python/numpy.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::python {

/// A Py_buffer released by the destructor. Construct and destroy it with the GIL held.
class AcquiredBuffer {
 public:
  AcquiredBuffer() = default;
  AcquiredBuffer(AcquiredBuffer&& other) noexcept;
  AcquiredBuffer& operator=(AcquiredBuffer&&) = delete;
  ~AcquiredBuffer();

  /// Returns false, without a Python error, if the object does not export with these flags.
  bool Acquire(nb::handle object, int flags);
  const Py_buffer& operator*() const { return buffer_; }
  const Py_buffer* operator->() const { return &buffer_; }

 private:
  Py_buffer buffer_{};
};

/// A view of a Python array, and the object that keeps its memory alive.
struct ArrayView {
  TensorView view;
  bool writable = false;
  AcquiredBuffer buffer;       // keeps the memory alive, if set
  nb::ndarray<nb::ro> tensor;  // keeps the memory alive, if set

  ConstTensorView Input() const { return view; }
};

/// Name of an argument of a call, and of the types that it accepts, for messages.
struct Argument {
  const char* verb;
  std::string_view name, types;
};

/// Returns the DType that equals a DLPack type; nullopt if no DType does.
std::optional<DType> DTypeOfDlpack(nb::dlpack::dtype dtype);

/// Returns a view of a NumPy array, or of a CPU object with the buffer or DLPack protocol, with a
/// type of DType and any strides. Copies nothing. Errors: TypeError for any other object.
ArrayView ViewArray(const Argument& argument, nb::handle object);

/// Returns a view of an array of one type. Errors: TypeError if `object` is not an array of that
/// type.
ArrayView ViewArrayOf(DType dtype, const char* verb, std::string_view name, nb::handle object);

/// Returns a view of an array of a float type, or of a copy if its rows are not contiguous. Errors:
/// TypeError for another object or type.
ArrayView ViewInput(const char* verb, nb::handle object, std::string_view name = "x");

/// Returns a view of a result of that `dtype` and `shape`.
/// Errors: TypeError if `object` is not an array; ValueError if it is not writable, not
/// C-contiguous, or differs in dtype or shape.
ArrayView ViewOutput(const char* verb, nb::handle object, DType dtype, const Shape& shape,
                     std::string_view name = "out");

/// Returns `object` as a NumPy array over the same memory. Errors: TypeError if that is impossible.
nb::object AsNumPyArray(const Argument& argument, nb::handle object);

/// Returns a new C-contiguous array, not initialised; large ones use huge pages.
nb::object NewArray(DType dtype, const Shape& shape);

/// Returns the bytes of a C-contiguous array.
std::span<std::byte> BytesOf(const ArrayView& array);

/// Sets the array's bytes to zero.
void ZeroArray(const ArrayView& array);

nb::tuple ShapeTuple(const Shape& shape);

}  // namespace narrowfloat::python
