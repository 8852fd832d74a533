// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "narrowfloat/io/write_convention.h"

namespace narrowfloat::io {

/// Findings about the codes and scales of a weight.
struct WeightCheck {
  std::uint64_t nan_codes = 0;
  std::uint64_t nan_scales = 0;  // NaN or infinite
  std::uint64_t negative_scales = 0;
  std::uint64_t zero_scales = 0;       // of blocks with a code that is not zero
  std::uint64_t infinite_values = 0;   // in fp32, of finite codes and scales
  std::uint64_t saturated_blocks = 0;  // half of the codes or more are the largest; may be valid
};

/// Counts the findings. A scale of the whole tensor counts as a scale; a zero there is a finding if
/// any code is not zero.
WeightCheck CheckWeight(const CanonicalWeight& weight);

}  // namespace narrowfloat::io
