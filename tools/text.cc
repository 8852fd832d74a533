// SPDX-License-Identifier: Apache-2.0
#include "tools/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace narrowfloat::tools {
namespace {

struct CodePoint {
  char32_t value;
  std::size_t bytes;  // 0: the text does not begin with valid UTF-8
};

/// Decodes the first character of a text. Requires: the text is not empty. Overlong forms and
/// surrogates are invalid UTF-8 (RFC 3629).
CodePoint FirstCodePoint(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (at(0) < 0x80) return {at(0), 1};
  const std::size_t bytes = at(0) >= 0xF0 ? 4 : at(0) >= 0xE0 ? 3 : 2;
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (at(0) < 0xC2 || at(0) > 0xF4 || text.size() < bytes) return {0, 0};
  char32_t value = at(0) & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return {0, 0};
    value = value << 6 | (at(i) & 0x3Fu);
  }
  const bool valid =
      value >= kSmallest[bytes] && value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
  return valid ? CodePoint{value, bytes} : CodePoint{0, 0};
}

/// Returns whether a character moves the cursor, ends the line or changes the direction of the text
/// after it.
bool Steers(char32_t point) {
  constexpr struct {
    char32_t first, last;
  } kRanges[] = {
      {0x00, 0x1F},      // C0
      {0x7F, 0x9F},      // DEL and C1
      {0x61C, 0x61C},    // Arabic letter mark
      {0x200E, 0x200F},  // marks of direction
      {0x2028, 0x202E},  // line and paragraph separators, embeddings and overrides
      {0x2066, 0x2069},  // isolates
  };
  return std::ranges::any_of(
      kRanges, [&](const auto& range) { return range.first <= point && point <= range.last; });
}

}  // namespace

std::string BytesText(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", bytes, digits, kUnits[unit]);
}

std::string DurationText(double seconds) {
  constexpr double kLongest = 359999;  // 99:59:59
  const std::int64_t whole = std::llround(std::clamp(seconds, 0.0, kLongest));
  const std::int64_t hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest)
                   : fmt::format("{}:{:02}", minutes, rest);
}

std::string CountText(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string Escaped(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    if (point.bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    } else if (!Steers(point.value)) {
      out += text.substr(0, point.bytes);
    } else {
      out += fmt::format(fmt::runtime(point.value < 0x100 ? "\\x{:02x}" : "\\u{:04x}"),
                         static_cast<std::uint32_t>(point.value));
    }
    text.remove_prefix(std::max<std::size_t>(point.bytes, 1));
  }
  return out;
}

std::string TableText(const std::vector<std::vector<std::string>>& rows,
                      const std::vector<std::size_t>& right) {
  constexpr std::size_t kWidest = 128;
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      // A long name must not widen the lines of all other names.
      if (row[i].size() <= kWidest) widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool flush_right = std::ranges::find(right, i) != right.end();
      line += flush_right ? fmt::format("{:>{}}  ", row[i], widths[i])
                          : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace narrowfloat::tools
