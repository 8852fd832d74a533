// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace narrowfloat::tools {

/// Writes `text` to standard error. Ignores a failure, because the work must go on even if its
/// message cannot be written.
void WriteToStderr(std::string_view text) noexcept;

/// Formats a message and writes it to standard error, as WriteToStderr.
template <class... T>
void PrintToStderr(fmt::format_string<T...> format, T&&... values) {
  WriteToStderr(fmt::format(format, std::forward<T>(values)...));
}

}  // namespace narrowfloat::tools
