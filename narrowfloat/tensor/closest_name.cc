// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/closest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace narrowfloat {
namespace {

constexpr std::size_t kLongest = 64;  // limit of compared texts; untrusted ones may be megabytes

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a`
/// into `b` (optimal string alignment distance). `row[j]` is the count for the first i + 1
/// characters of `a` and j of `b`; `above` has the counts for i of `a`, `above_that` for i - 1.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1), above(row.size()), above_that(row.size());
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    above_that.swap(above);
    above.swap(row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = above[j] + (a[i] == b[j] ? 0 : 1);
      row[j + 1] = std::min({replaced, row[j] + 1, above[j + 1] + 1});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
        row[j + 1] = std::min(row[j + 1], above_that[j - 1] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string_view ClosestName(std::string_view text, std::span<const std::string_view> names) {
  if (text.size() < 2 || text.size() > kLongest) return "";
  const std::string lower = Lower(text);
  std::string_view closest;
  std::size_t smallest = std::max<std::size_t>(1, text.size() / 3) + 1;
  for (const std::string_view name : names) {
    const std::string other = Lower(name);
    if (other.starts_with(lower)) return name;
    const std::size_t distance = EditDistance(lower, other);
    if (distance >= smallest) continue;
    smallest = distance;
    closest = name;
  }
  return closest;
}

std::string DidYouMean(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view closest = ClosestName(text, names);
  return closest.empty() ? "" : fmt::format(" (did you mean '{}'?)", closest);
}

}  // namespace narrowfloat
