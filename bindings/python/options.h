// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string_view>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/quant_spec.h"

namespace narrowfloat::python {

namespace nb = nanobind;

/// A direction of a call. Converts from Python's bool and NumPy's.
struct Flag {
  bool is_set = false;

  operator bool() const { return is_set; }  // NOLINT(google-explicit-constructor): reads as bool
};

/// Returns the flag, or nullopt for another type.
std::optional<Flag> ParseFlag(nb::handle value);

/// The keyword options of one call.
struct CallOptions {
  QuantSpec spec;
  int threads = 0;
  float noop = 0.0f;

  bool IsNoop() const { return noop == 1.0f; }
  Execution MakeExecution() const { return {.threads = threads, .noop = &noop}; }
};

/// Keywords that a verb accepts besides those of the spec.
enum class OptionScope { kSpecOnly, kSpecAndExecution };

/// Reads **options of a call for `scheme`; None means not given.
/// Errors: TypeError for an unknown name, naming the known ones, or a value of the wrong type;
/// InvalidArgument for an unknown scheme, an option that the scheme does not take, or a value out
/// of range.
CallOptions ParseOptions(const char* verb, std::string_view scheme, bool rowwise, bool columnwise,
                         const nb::kwargs& options, OptionScope scope);

/// Returns `value` as fp32: a number, a bool or a float32 array of one element. Ignores the
/// caller's rounding mode. Errors: TypeError naming `key`.
float ParseFloat(const char* verb, std::string_view key, nb::handle value);

/// Reads only `threads`, for verbs without a spec. Errors: TypeError for any other name or type.
Execution ParseExecution(const char* verb, const nb::kwargs& options);

}  // namespace narrowfloat::python

template <>
struct nanobind::detail::type_caster<narrowfloat::python::Flag> {
  NB_TYPE_CASTER(narrowfloat::python::Flag, const_name("bool"))

  bool from_python(handle source, std::uint8_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    const auto flag = narrowfloat::python::ParseFlag(source);
    if (flag) value = *flag;
    return flag.has_value();
  }
};
