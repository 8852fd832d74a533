// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/numpy.h"

#include <fmt/format.h>

#include <string>

namespace narrowfloat::python {
namespace {

const NumPy* g_numpy = nullptr;  // set once, under the import lock

}  // namespace

void LoadNumPy() {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const nb::module_ ml_dtypes = nb::module_::import_("ml_dtypes");
  auto* loaded = new NumPy;  // never deleted: arrays may outlive the module object
  loaded->array_type = numpy.attr("ndarray");
  loaded->bool_type = numpy.attr("bool_");
  loaded->scalar_type = numpy.attr("generic");
  loaded->dtype = numpy.attr("dtype");
  loaded->empty = numpy.attr("empty");
  loaded->asarray = numpy.attr("asarray");
  loaded->ascontiguousarray = numpy.attr("ascontiguousarray");
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    const std::string name(DTypeName(static_cast<DType>(i)));
    const bool extension = static_cast<DType>(i) == DType::kBFloat16;
    loaded->dtypes[i] =
        loaded->dtype((extension ? nb::handle(ml_dtypes) : nb::handle(numpy)).attr(name.c_str()));
  }
  loaded->dtype_name = nb::steal(PyUnicode_InternFromString("dtype"));
  g_numpy = loaded;
}

const NumPy& Np() {
  return *g_numpy;
}

bool IsMasked(nb::handle object) {
  // ndarray itself has no attribute `mask`.
  return !object.type().is(Np().array_type) && nb::isinstance(object, Np().array_type) &&
         nb::hasattr(object, "mask");
}

bool IsArray(nb::handle object) {
  return nb::isinstance(object, Np().array_type) && !IsMasked(object);
}

nb::object DTypeObject(DType dtype) {
  return Np().dtypes[static_cast<std::size_t>(dtype)];
}

std::optional<DType> DTypeOfObject(nb::handle dtype) {
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    if (Np().dtypes[i].is(dtype)) return static_cast<DType>(i);
  }
  // One type may have several dtype objects: unpickled ones, or objects with metadata.
  for (std::size_t i = 0; i < kDTypeCount; ++i) {
    if (Np().dtypes[i].equal(dtype)) return static_cast<DType>(i);
  }
  return std::nullopt;
}

DType ParseFloatDType(const char* verb, nb::handle dtype) {
  nb::object parsed;
  try {
    parsed = Np().dtype(dtype);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  const auto known = parsed.is_valid() ? DTypeOfObject(parsed) : std::nullopt;
  if (known && IsFloat(*known)) return *known;
  throw nb::type_error(
      fmt::format("{}: dtype must be {}, got {}", verb, FloatTypeNames(), nb::repr(dtype).c_str())
          .c_str());
}

std::string_view FloatTypeNames() {
  static const std::string kText = [] {
    std::string text;
    for (std::size_t i = 0; i < kFloatTypeCount; ++i) {
      if (i > 0) text += i + 1 == kFloatTypeCount ? " or " : ", ";
      text += DTypeName(static_cast<DType>(i));
    }
    return text;
  }();
  return kText;
}

}  // namespace narrowfloat::python
