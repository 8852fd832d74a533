// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::tools {

/// A value of an option, and its meaning to the program.
template <class T>
struct OptionValue {
  std::string_view name;
  T value;
};

inline constexpr OptionValue<DType> kFloatTypes[] = {
    {"bf16", DType::kBFloat16}, {"f16", DType::kFloat16}, {"f32", DType::kFloat32}};

enum class ScaleFormat { kUe8m0, kFp32 };
inline constexpr OptionValue<ScaleFormat> kScaleFormats[] = {{"ue8m0", ScaleFormat::kUe8m0},
                                                             {"f32", ScaleFormat::kFp32}};

enum class Shell { kBash, kZsh, kFish };
inline constexpr OptionValue<Shell> kShells[] = {
    {"bash", Shell::kBash}, {"zsh", Shell::kZsh}, {"fish", Shell::kFish}};

/// Returns the names of a table, in its order.
template <auto& table>
std::vector<std::string> NamesIn() {
  std::vector<std::string> names;
  for (const auto& row : table) names.emplace_back(row.name);
  return names;
}

/// Returns the value of that name. Requires: the parser has checked that the table has it.
template <class T, std::size_t n>
T ValueIn(const OptionValue<T> (&table)[n], std::string_view name) {
  const auto* row = std::ranges::find(table, name, &OptionValue<T>::name);
  if (row == std::end(table)) throw std::logic_error("option_values: no row " + std::string(name));
  return row->value;
}

}  // namespace narrowfloat::tools
