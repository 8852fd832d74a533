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

/// The objects of NumPy and ml_dtypes that the module uses. Set once, when the module is imported,
/// and never changed.
struct NumPy {
  nb::object array_type, bool_type, scalar_type;  // ndarray, bool_, generic
  nb::object dtype, empty, asarray, ascontiguousarray;
  std::array<nb::object, kDTypeCount> dtypes;  // in the order of DType
  nb::object dtype_name;                       // the interned string "dtype"
};

/// Imports numpy and ml_dtypes; called only when the module is initialised.
void LoadNumPy();
const NumPy& Np();

/// Returns true if `object` is an array with a mask; this module would ignore the mask.
bool IsMasked(nb::handle object);

/// Returns true if `object` is an array without a mask.
bool IsArray(nb::handle object);

/// Returns the NumPy dtype object of `dtype`.
nb::object DTypeObject(DType dtype);

/// Returns the DType of a dtype object; nullopt for other types and for a foreign byte order.
std::optional<DType> DTypeOfObject(nb::handle dtype);

/// Returns the float type of a dtype, in any form that numpy.dtype() accepts. Errors: TypeError if
/// it is not in FloatTypes; `verb` begins the message.
DType ParseFloatDType(const char* verb, nb::handle dtype);

/// Returns "float32, float16 or bfloat16".
std::string_view FloatTypeNames();

}  // namespace narrowfloat::python
