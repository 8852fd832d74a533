// SPDX-License-Identifier: Apache-2.0
#include "tools/scheme_option.h"

#include <fmt/format.h>

#include <cmath>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::tools {

QuantSpec ParseScheme(const std::string& verb, const std::string& text) {
  QuantSpec spec = ParseQuantSpec(text);
  if (spec.scale &&
      (!(*spec.scale > 0) || !std::isfinite(*spec.scale) || !std::isfinite(1.0f / *spec.scale))) {
    throw InvalidArgument(
        fmt::format("{}: scale must be positive and finite, and so must its reciprocal, got {}",
                    verb, *spec.scale));
  }
  for (const auto& amax : {spec.amax, spec.amax_columnwise}) {
    if (!amax || (std::isfinite(*amax) && *amax >= 0)) continue;
    throw InvalidArgument(
        fmt::format("{}: amax must be finite and not negative, got {}", verb, *amax));
  }
  return spec;
}

bool IsTransformed(const QuantSpec& spec) {
  return spec.rht && !spec.rowwise;
}

}  // namespace narrowfloat::tools
