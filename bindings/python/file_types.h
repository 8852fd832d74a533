// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "narrowfloat/io/file_dtype.h"

namespace narrowfloat::python {

namespace nb = nanobind;

/// Returns NumPy's or ml_dtypes' name of a file type. An empty name means that NumPy has no such
/// type; the tensor is then an array of bytes.
const char* NumPyName(io::FileDType dtype);

/// Returns the dtype of that name, or uint8 if the name is empty.
nb::object NumPyType(io::FileDType dtype);

}  // namespace narrowfloat::python
