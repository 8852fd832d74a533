// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <vector>

#include "bindings/python/array.h"
#include "bindings/python/options.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat::python {

/// narrowfloat.QuantizedTensor: a spec, a shape, a nominal dtype, and NumPy arrays by role. Python
/// owns the arrays and may change them, so each call reads their addresses again.
struct QuantizedTensor {
  QuantSpec spec;
  Shape shape;
  DType dtype = DType::kFloat32;              // nominal: the type that dequantizing returns
  std::array<nb::object, kRoleCount> arrays;  // invalid for roles without a buffer
};

/// Returns the QuantizedTensor of an argument. Errors: TypeError for another type; `verb` and
/// `name` are for the message.
QuantizedTensor& ParseTensor(const char* verb, const char* name, const nb::object& object);

/// The memory of a tensor's buffers during one verb.
struct TensorMemory {
  QuantizedView view;
  std::vector<ArrayView> arrays;
};

/// Views a tensor for reading. Errors: TypeError if an array's dtype has changed.
TensorMemory ViewBuffers(const char* verb, const QuantizedTensor& tensor);

/// Views a tensor for writing. Errors: ValueError if a buffer is not writable.
TensorMemory ViewWritableBuffers(const char* verb, const QuantizedTensor& tensor);

/// Returns the shape of the stored scales without padding.
MatrixShape ContentShape(ScaleGrid grid);

/// Initialisation of new buffers.
enum class Fill { kNone, kZero };

/// Returns a tensor with new buffers, as PlanQuantize lists them.
QuantizedTensor NewTensor(const QuantSpec& spec, const Shape& shape, DType dtype, Fill fill);

/// Implements narrowfloat.from_buffers.
QuantizedTensor FromBuffers(std::string_view scheme, const nb::object& shape,
                            const nb::object& buffers, const nb::object& dtype,
                            const nb::kwargs& options);

/// Returns the shape of a sequence of ints, or of one int. Errors: TypeError; its message begins
/// with `verb` and `name`.
Shape ParseShape(const char* verb, const nb::object& shape, const char* name = "shape");

void RegisterQuantizedTensor(nb::module_& module);

}  // namespace narrowfloat::python
