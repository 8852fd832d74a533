// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::python {

namespace nb = nanobind;

inline constexpr std::size_t kDTypeCount = 4;

/// What the module needs of NumPy and ml_dtypes. Looked up once when the module is imported, never
/// changed.
struct NumPy {
  nb::object array_type, bool_type, scalar_type;  // ndarray, bool_, generic
  nb::object dtype, empty, asarray, ascontiguousarray, from_dlpack;
  std::array<nb::object, kDTypeCount> dtypes;  // in the order of DType
  nb::object dtype_name, native_name;          // the interned strings "dtype" and "isnative"
};

/// Imports numpy and ml_dtypes; called by the module's initialisation alone.
void LoadNumPy();
const NumPy& Np();

bool IsArray(nb::handle object);

/// The NumPy dtype object of `dtype`.
nb::object DTypeObject(DType dtype);

/// Nothing if the dtype object is none of ours: another type, or a foreign byte order.
std::optional<DType> DTypeOfObject(nb::handle dtype);

/// The float type that a caller names by anything numpy.dtype() takes. Errors: TypeError if it is
/// no float type of FloatTypes; `verb` begins the message.
DType ParseFloatDType(const char* verb, nb::handle dtype);

/// "float32, float16 or bfloat16".
std::string_view FloatTypeNames();

}  // namespace narrowfloat::python
