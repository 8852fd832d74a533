// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace narrowfloat::tools {

/// Returns bytes in decimal units, three digits: "90.9 MB".
std::string BytesText(double bytes);

/// Returns a duration: "0:07", "1:02:03".
std::string DurationText(double seconds);

/// Returns a count with its noun: "1 file", "2 files".
std::string CountText(std::size_t count, std::string_view noun);

/// Returns `text` with an escape for each character that could control a terminal or reorder its
/// line: control characters, bytes that are not UTF-8, line separators, marks of direction. Names
/// come from untrusted files.
std::string Escaped(std::string_view text);

/// Returns columns with two spaces between them; the first row is the heading. Columns in `right`
/// are right-aligned. A cell of more than 128 bytes shifts the rest of its line.
std::string TableText(const std::vector<std::vector<std::string>>& rows,
                      const std::vector<std::size_t>& right);

}  // namespace narrowfloat::tools
