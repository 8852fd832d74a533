// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace narrowfloat {

/// Returns the name closest to a misspelled `text`: the first one that begins with it, else the
/// nearest one by insertions, deletions, replacements and swaps of neighbouring characters: at most
/// one per three characters of `text`, or one for two characters. Upper and lower case count as
/// equal. Returns an empty text if no name is that near, or `text` has fewer than 2 or more than 64
/// characters.
std::string_view ClosestName(std::string_view text, std::span<const std::string_view> names);

/// Returns " (did you mean 'NAME'?)" for messages, or nothing.
std::string DidYouMean(std::string_view text, std::span<const std::string_view> names);

}  // namespace narrowfloat
