// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace narrowfloat::io {

inline constexpr std::string_view kPlainWeight = ".weight";  // suffix of a layer's float matrix

/// Returns a dotted name without its last component; an empty text for a name of one component.
inline std::string_view ModuleOf(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// Returns the last component of a dotted name.
inline std::string_view ParameterOf(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // npos + 1 is 0
}

/// Returns a name without the suffix kPlainWeight; the whole name if it has no such suffix.
inline std::string_view StemOf(std::string_view name) {
  if (name.ends_with(kPlainWeight)) name.remove_suffix(kPlainWeight.size());
  return name;
}

}  // namespace narrowfloat::io
