// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace narrowfloat {

/// A list of types, to be expanded where a table is built.
template <class... Ts>
struct TypeList {
  static constexpr std::size_t kSize = sizeof...(Ts);
};

}  // namespace narrowfloat
