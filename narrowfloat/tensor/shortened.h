// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace narrowfloat {

/// Returns `text` for a message; cuts a text of more than 1 KiB there, at a character, and appends
/// "...". Texts of a caller or a file may be megabytes.
std::string Shortened(std::string_view text);

}  // namespace narrowfloat
