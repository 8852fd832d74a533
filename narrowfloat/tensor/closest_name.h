// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace narrowfloat {

/// Returns the name closest to a misspelled `text`: the first name that begins with `text`, else
/// the name at the smallest edit distance (insertions, deletions, replacements, swaps of
/// neighbours). The distance is at most one per three characters of `text`, or one for two
/// characters. Ignores case. Returns an empty text if no name is that close, or `text` has fewer
/// than 2 or more than 64 characters.
std::string_view ClosestName(std::string_view text, std::span<const std::string_view> names);

/// Returns " (did you mean 'NAME'?)" for a message, or an empty text if no name is close.
std::string DidYouMean(std::string_view text, std::span<const std::string_view> names);

}  // namespace narrowfloat
