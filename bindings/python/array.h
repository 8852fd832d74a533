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

/// A Py_buffer that is released when this goes; made and destroyed with the GIL held.
class BufferHold {
 public:
  BufferHold() = default;
  BufferHold(BufferHold&& other) noexcept;
  BufferHold& operator=(BufferHold&&) = delete;
  ~BufferHold();

  /// False, without a Python error, if the object does not export with these flags.
  bool Acquire(nb::handle object, int flags);
  const Py_buffer& operator*() const { return buffer_; }
  const Py_buffer* operator->() const { return &buffer_; }

 private:
  Py_buffer buffer_{};
};

/// A view of a Python array, and what keeps its memory where it is.
struct HeldArray {
  TensorView view;
  bool writable = false;
  BufferHold buffer;           // either this
  nb::ndarray<nb::ro> tensor;  // or this holds the memory

  ConstTensorView Input() const { return view; }
};

/// Which argument of which call is being read, and the types it may have: all for messages.
struct Argument {
  const char* verb;
  std::string_view name, types;
};

/// Our type of a DLPack one; nothing if it is none of ours.
std::optional<DType> DTypeOfDlpack(nb::dlpack::dtype dtype);

/// Views `object`: a NumPy array, or a CPU object with the buffer or DLPack protocol, of one of our
/// types. Copies nothing; any strides. Errors: TypeError if it is something else.
HeldArray HoldArray(const Argument& argument, nb::handle object);

/// HoldArray of one type. Errors: TypeError if `object` is no array or of another type.
HeldArray HoldArrayOf(DType dtype, const char* verb, std::string_view name, nb::handle object);

/// HoldArray of a float type, whose rows are contiguous: a copy if those of `object` are not.
HeldArray HoldInput(const char* verb, nb::handle object, std::string_view name = "x");

/// HoldArray of the `dtype` and `shape` of a result.
/// Errors: TypeError if `object` is no array; ValueError if it is not writable, not C-contiguous or
/// differs in dtype or shape.
HeldArray HoldOutput(const char* verb, nb::handle object, DType dtype, const Shape& shape,
                     std::string_view name = "out");

/// `object` as a NumPy array over the same memory. Errors: TypeError if there is none.
nb::object BorrowArray(const Argument& argument, nb::handle object);

/// A new C-contiguous array, not filled; large ones ask for huge pages.
nb::object NewArray(DType dtype, const Shape& shape);

/// The array's bytes become zero.
void ZeroArray(const HeldArray& array);

nb::tuple ShapeTuple(const Shape& shape);

}  // namespace narrowfloat::python
