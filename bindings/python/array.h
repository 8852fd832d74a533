// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <optional>
#include <string_view>

#include "bindings/python/numpy.h"
#include "narrowfloat/tensor/plan.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::python {

/// A Py_buffer released by the destructor. Construct and destroy it with the GIL held.
class BufferHold {
 public:
  BufferHold() = default;
  BufferHold(BufferHold&& other) noexcept;
  BufferHold& operator=(BufferHold&&) = delete;
  ~BufferHold();

  /// Returns false, without a Python error, if the object does not export with these flags.
  bool Acquire(nb::handle object, int flags);
  const Py_buffer& operator*() const { return buffer_; }
  const Py_buffer* operator->() const { return &buffer_; }

 private:
  Py_buffer buffer_{};
};

/// A view of a Python array, and the object that keeps its memory alive.
struct HeldArray {
  TensorView view;
  bool writable = false;
  BufferHold buffer;           // holds the memory, or
  nb::ndarray<nb::ro> tensor;  // this does

  ConstTensorView Input() const { return view; }
};

/// Names an argument of a call, and the types it may have, in messages.
struct Argument {
  const char* verb;
  std::string_view name, types;
};

/// Returns our type of a DLPack type; nothing if there is none.
std::optional<DType> DTypeOfDlpack(nb::dlpack::dtype dtype);

/// Views `object`: a NumPy array, or a CPU object with the buffer or DLPack protocol, of one of our
/// types. Copies nothing; any strides. Errors: TypeError if it is something else.
HeldArray HoldArray(const Argument& argument, nb::handle object);

/// Views an array of one type. Errors: TypeError if `object` is not an array of that type.
HeldArray HoldArrayOf(DType dtype, const char* verb, std::string_view name, nb::handle object);

/// Views an array of a float type with contiguous rows; copies it if its rows are not contiguous.
HeldArray HoldInput(const char* verb, nb::handle object, std::string_view name = "x");

/// Views a result, which must have that `dtype` and `shape`.
/// Errors: TypeError if `object` is not an array; ValueError if it is not writable, not
/// C-contiguous, or differs in dtype or shape.
HeldArray HoldOutput(const char* verb, nb::handle object, DType dtype, const Shape& shape,
                     std::string_view name = "out");

/// Returns `object` as a NumPy array over the same memory. Errors: TypeError if that is impossible.
nb::object BorrowArray(const Argument& argument, nb::handle object);

/// Returns a new C-contiguous array, not initialised; large ones use huge pages.
nb::object NewArray(DType dtype, const Shape& shape);

/// Sets the array's bytes to zero.
void ZeroArray(const HeldArray& array);

nb::tuple ShapeTuple(const Shape& shape);

}  // namespace narrowfloat::python
