// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bindings/python/array.h"
#include "bindings/python/numpy.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"
#include "narrowfloat/tensor/spec_field.h"

namespace narrowfloat::python {
namespace {

constexpr std::string_view kThreads = "threads", kNoop = "noop";

/// Returns true for the keys of directions: in Python these are arguments, not options.
bool IsDirection(std::string_view key) {
  return key == "rowwise" || key == "columnwise";
}

bool IsSpecOption(std::string_view key) {
  const std::vector<std::string_view> keys = SpecKeys();
  return !IsDirection(key) && std::ranges::find(keys, key) != keys.end();
}

[[noreturn]] void ThrowUnknown(const char* verb, std::string_view key, OptionScope scope) {
  std::vector<std::string_view> keys = SpecKeys();
  std::erase_if(keys, IsDirection);
  if (scope == OptionScope::kSpecAndExecution) keys.insert(keys.end(), {kNoop, kThreads});
  std::ranges::sort(keys);
  throw nb::type_error(
      fmt::format("{}: unknown option '{}'; there are: {}", verb, key, fmt::join(keys, ", "))
          .c_str());
}

[[noreturn]] void ThrowNotNumber(const char* verb, std::string_view key, nb::handle value) {
  throw nb::type_error(
      fmt::format("{}: {} must be a number, a bool or a float32 array of one element, got {}", verb,
                  key, nb::type_name(value.type()).c_str())
          .c_str());
}

/// Converts NumPy's scalars and Python's numbers. Rounds a double to float32 in the default
/// floating-point environment, not in the caller's. An int out of double's range becomes infinity,
/// as does a double out of float32's range.
float ParseNumber(const char* verb, std::string_view key, nb::handle value) {
  double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    const bool overflows = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    PyErr_Clear();
    if (!overflows) ThrowNotNumber(verb, key, value);
    number = std::copysign(HUGE_VAL, value < nb::int_(0) ? -1.0 : 1.0);
  }
  const FloatEnvironment environment;
  volatile double exact = number;  // keeps the conversion inside the environment
  volatile float rounded = static_cast<float>(exact);
  return rounded;
}

float ParseArrayItem(const char* verb, std::string_view key, nb::handle value) {
  const ArrayView array = ViewArray({verb, key, DTypeName(DType::kFloat32)}, value);
  if (array.view.dtype != DType::kFloat32 || FlattenShape(array.view.shape).Size() != 1) {
    throw nb::type_error(
        fmt::format("{}: {} must be a float or a float32 array of one element, got "
                    "{} of shape {}",
                    verb, key, DTypeName(array.view.dtype), ShapeText(array.view.shape))
            .c_str());
  }
  float item = 0.0f;
  std::memcpy(&item, array.view.data, sizeof item);
  return item;
}

std::string_view KeyText(nb::handle key) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
  if (text == nullptr) nb::raise_python_error();
  return {text, static_cast<std::size_t>(size)};
}

/// Returns the value of an int, of an integer scalar or of an integer array without dimensions.
/// Errors: TypeError for other types, also for floats, which cannot hold all 64-bit integers;
/// InvalidArgument for values out of 64 bits.
std::uint64_t ParseInteger(const char* verb, std::string_view key, nb::handle value) {
  const bool is_bool = PyBool_Check(value.ptr());
  const nb::object integer = is_bool ? nb::object() : nb::steal(PyNumber_Index(value.ptr()));
  if (!integer.is_valid()) {
    PyErr_Clear();
    throw nb::type_error(fmt::format("{}: {} must be an int, got {} of type {}", verb, key,
                                     nb::repr(value).c_str(), nb::type_name(value.type()).c_str())
                             .c_str());
  }
  const auto bits = PyLong_AsUnsignedLongLong(integer.ptr());
  if (PyErr_Occurred() == nullptr) return bits;
  PyErr_Clear();
  throw InvalidArgument(fmt::format("{}: {} must be an integer from 0 to 2^64 - 1, got {}", verb,
                                    key, nb::repr(integer).c_str()));
}

/// Returns true if the option with that key has a member of this type.
template <class Member>
bool Takes(std::string_view key) {
  const SpecField* field = FindSpecField(key);
  return field != nullptr && std::holds_alternative<Member>(field->member);
}

SpecValue ParseValue(const char* verb, std::string_view key, nb::handle value) {
  if (Takes<std::uint64_t QuantSpec::*>(key)) return ParseInteger(verb, key, value);
  if (PyBool_Check(value.ptr())) return value.is(Py_True);
  if (PyUnicode_Check(value.ptr()) && Takes<FourOverSix QuantSpec::*>(key)) return KeyText(value);
  if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) return ParseNumber(verb, key, value);
  if (nb::isinstance(value, Np().bool_type)) return PyObject_IsTrue(value.ptr()) == 1;
  if (nb::isinstance(value, Np().scalar_type)) return ParseNumber(verb, key, value);
  const bool text = PyUnicode_Check(value.ptr()) || PyBytes_Check(value.ptr());
  const bool array =
      !text && (PyObject_CheckBuffer(value.ptr()) != 0 || nb::hasattr(value, "__dlpack__"));
  if (!array) ThrowNotNumber(verb, key, value);
  return ParseArrayItem(verb, key, value);
}

/// Sets the amax from one value, or from a pair: one value per direction.
void SetAmax(QuantSpec& spec, const char* verb, nb::handle value) {
  constexpr std::string_view kKey = "amax";
  const bool sequence = nb::isinstance<nb::tuple>(value) || nb::isinstance<nb::list>(value);
  if (!sequence || nb::len(value) != 2) {
    SetSpecField(spec, kKey, ParseValue(verb, kKey, value));
    return;
  }
  SetSpecField(spec, kKey, ParseValue(verb, kKey, value[0]));
  SetSpecField(spec, "amax_columnwise", ParseValue(verb, kKey, value[1]));
}

int ThreadsOf(const char* verb, nb::handle value) {
  const bool is_bool = PyBool_Check(value.ptr());
  const nb::object index = is_bool ? nb::object() : nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    throw nb::type_error(fmt::format("{}: threads must be an int or None, got {}", verb,
                                     nb::type_name(value.type()).c_str())
                             .c_str());
  }
  int overflow = 0;
  const auto threads = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  constexpr int kMost = std::numeric_limits<int>::max();
  if (overflow != 0 || threads < 1 || threads > kMost) {
    throw InvalidArgument(fmt::format("{}: threads must be from 1 to {}, got {}", verb, kMost,
                                      nb::str(value).c_str()));
  }
  return static_cast<int>(threads);
}

}  // namespace

CallOptions ParseOptions(const char* verb, std::string_view scheme, bool rowwise, bool columnwise,
                         const nb::kwargs& options, OptionScope scope) {
  CallOptions parsed;
  parsed.spec = ParseQuantSpec(scheme);
  parsed.spec.rowwise = parsed.spec.rowwise && rowwise;
  parsed.spec.columnwise = parsed.spec.columnwise || columnwise;
  const bool execution = scope == OptionScope::kSpecAndExecution;
  for (const auto& [name, value] : options) {
    const std::string_view key = KeyText(name);
    const bool given = !value.is_none();
    if (execution && key == kThreads) {
      if (given) parsed.threads = ThreadsOf(verb, value);
    } else if (execution && key == kNoop) {
      if (given) parsed.noop = ParseFloat(verb, kNoop, value);
    } else if (!IsSpecOption(key)) {
      ThrowUnknown(verb, key, scope);
    } else if (given) {
      if (key == "amax") {
        SetAmax(parsed.spec, verb, value);
      } else {
        SetSpecField(parsed.spec, key, ParseValue(verb, key, value));
      }
    }
  }
  ValidateSpec(parsed.spec);
  return parsed;
}

std::optional<Flag> ParseFlag(nb::handle value) {
  if (PyBool_Check(value.ptr())) return Flag{value.is(Py_True)};
  if (nb::isinstance(value, Np().bool_type)) return Flag{PyObject_IsTrue(value.ptr()) == 1};
  return std::nullopt;
}

float ParseFloat(const char* verb, std::string_view key, nb::handle value) {
  const SpecValue parsed = ParseValue(verb, key, value);
  if (const float* number = std::get_if<float>(&parsed)) return *number;
  return std::get<bool>(parsed) ? 1.0f : 0.0f;
}

Execution ParseExecution(const char* verb, const nb::kwargs& options) {
  Execution execution;
  for (const auto& [name, value] : options) {
    const std::string_view key = KeyText(name);
    if (key != kThreads) {
      throw nb::type_error(
          fmt::format("{}: unknown option '{}'; there are: {}", verb, key, kThreads).c_str());
    }
    if (!value.is_none()) execution.threads = ThreadsOf(verb, value);
  }
  return execution;
}

}  // namespace narrowfloat::python
