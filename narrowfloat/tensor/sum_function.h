// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat {

/// A function of a product's sum plus bias, applied before the accumulated term is added.
enum class SumFunction : std::uint8_t {
  kNone,
  kGelu,              // Gelu; its argument can be rounded and stored too
  kTimesGeluGradient  // TimesGeluGradient at given points
};

}  // namespace narrowfloat
