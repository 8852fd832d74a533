// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/file_types.h"

#include <array>
#include <cstddef>

#include "bindings/python/numpy.h"

namespace narrowfloat::python {
namespace {

// In the order of io::FileDType.
constexpr auto kNumPyNames = std::to_array<const char*>({
    "bool",
    "",
    "",
    "",
    "uint8",
    "int8",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e8m0fnu",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "int16",
    "uint16",
    "float16",
    "bfloat16",
    "int32",
    "uint32",
    "float32",
    "complex64",
    "float64",
    "int64",
    "uint64",
});
static_assert(kNumPyNames.size() == io::kFileDTypes.size());

}  // namespace

const char* NumPyName(io::FileDType dtype) {
  return kNumPyNames[static_cast<std::size_t>(dtype)];
}

nb::object NumPyType(io::FileDType dtype) {
  const char* name = NumPyName(dtype);
  return *name == '\0' ? DTypeObject(DType::kUInt8) : Np().dtype(name);
}

}  // namespace narrowfloat::python
