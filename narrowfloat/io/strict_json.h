// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace narrowfloat::io {

/// Parses JSON that somebody hostile may have written; only .cc files include this.
/// Errors: InvalidArgument "<source>: ..." for text that is not JSON, that repeats a name within an
/// object, or that nests more than `max_depth` objects and arrays.
nlohmann::json ParseStrictJson(const std::string& source, std::string_view text, int max_depth);

}  // namespace narrowfloat::io
