// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat {

/// A function of the sum and its bias, applied before the accumulated term is added.
enum class SumFunction : std::uint8_t {
  kNone,
  kGelu,              // Gelu; its argument is rounded and stored, if wanted
  kTimesGeluGradient  // TimesGeluGradient at given points
};

}  // namespace narrowfloat
