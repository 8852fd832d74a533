// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace narrowfloat {

/// A list of types, expanded where a table is built.
template <class... Ts>
struct TypeList {
  static constexpr std::size_t kSize = sizeof...(Ts);
};

template <class A, class B>
struct Joined;
template <class... A, class... B>
struct Joined<TypeList<A...>, TypeList<B...>> {
  using Type = TypeList<A..., B...>;
};
/// Concatenates two lists.
template <class A, class B>
using Join = typename Joined<A, B>::Type;

}  // namespace narrowfloat
