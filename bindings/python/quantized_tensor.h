// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <vector>

#include "bindings/python/array.h"
#include "bindings/python/options.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::python {

/// narrowfloat.QuantizedTensor: a spec, a shape, a nominal dtype, and NumPy arrays by role. The
/// arrays belong to Python and may change under it, so their memory is looked up anew in each call.
struct QuantizedTensor {
  QuantSpec spec;
  Shape shape;
  DType dtype = DType::kFloat32;              // nominal: what dequantizing gives by default
  std::array<nb::object, kRoleCount> arrays;  // invalid where the tensor has no such buffer
};

/// The QuantizedTensor that an argument is. Errors: TypeError if it is none; `verb` and `name` are
/// for the message.
QuantizedTensor& TensorOf(const char* verb, const char* name, const nb::object& object);

/// The memory of a tensor's buffers for the length of one verb.
struct HeldTensor {
  QuantizedView view;
  std::vector<HeldArray> arrays;
};

/// Errors: TypeError if an array's dtype was changed since.
HeldTensor Hold(const char* verb, const QuantizedTensor& tensor);

/// Hold for writing. Errors: ValueError if a buffer is not writable.
HeldTensor HoldWritable(const char* verb, const QuantizedTensor& tensor);

/// What becomes of the bytes of new buffers.
enum class Fill { kNone, kZero };

/// A tensor with new buffers, as PlanQuantize lists them.
QuantizedTensor NewTensor(const QuantSpec& spec, const Shape& shape, DType dtype, Fill fill);

/// narrowfloat.from_buffers.
QuantizedTensor FromBuffers(std::string_view scheme, const nb::object& shape,
                            const nb::object& buffers, const nb::object& dtype,
                            const nb::kwargs& options);

/// The shape that a sequence of ints, or an int, says. Errors: TypeError.
Shape ParseShape(const char* verb, const nb::object& shape);

void RegisterQuantizedTensor(nb::module_& module);

}  // namespace narrowfloat::python
