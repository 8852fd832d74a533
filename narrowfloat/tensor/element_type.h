// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "narrowfloat/numerics/formats.h"

namespace narrowfloat {

/// Name of an element format, and its dtype's name in JAX and ml_dtypes.
struct ElementType {
  std::string_view element, dtype;
};
inline constexpr auto kElementTypes = ArrayOf(ElementFormats{}, []<class F>() {
  return ElementType{F::kName, F::kDTypeName};
});

}  // namespace narrowfloat
