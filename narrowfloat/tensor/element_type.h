// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string_view>

#include "narrowfloat/numerics/formats.h"

namespace narrowfloat {

/// Name of an element format, and its dtype's name in JAX and ml_dtypes.
struct ElementType {
  std::string_view element, dtype;
};
inline constexpr ElementType kElementTypes[] = {
    {E4M3::kName, "float8_e4m3fn"},
    {E5M2::kName, "float8_e5m2"},
    {E2M1::kName, "float4_e2m1fn"},
};

}  // namespace narrowfloat
