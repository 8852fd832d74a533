// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

namespace narrowfloat {

/// A list of types, expanded where a table is built.
template <class... Ts>
struct TypeList {
  static constexpr std::size_t kSize = sizeof...(Ts);
};

/// Returns the position of T in a list; the list's size if T is not in it.
template <class T, class... Ts>
constexpr std::size_t IndexIn(TypeList<Ts...>) {
  std::size_t index = 0;
  static_cast<void>(((std::is_same_v<T, Ts> || (++index, false)) || ...));
  return index;
}

/// Returns an array of make<T>() for each type of a list.
template <class... Ts, class Make>
constexpr auto ArrayOf(TypeList<Ts...>, Make make) {
  return std::array{make.template operator()<Ts>()...};
}

}  // namespace narrowfloat
