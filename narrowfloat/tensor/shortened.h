// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace narrowfloat {

/// Returns a text for a message: its first KiB and "..." if it is longer. A caller or a file may
/// give megabytes.
std::string Shortened(std::string_view text);

}  // namespace narrowfloat
