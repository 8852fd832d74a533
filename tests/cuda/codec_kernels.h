// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace narrowfloat::cuda {

/// The differences of a conversion in device code from the reference in numerics/.
struct Comparison {
  std::string name;
  std::uint64_t inputs = 0;
  unsigned differences = 0;
  std::uint32_t example = 0;  // one input that differs
};

/// Compares the conversions of items.cuh, e2m1.cuh and e2m1_words.cuh in kernels/cuda with the
/// reference, on the device. Inputs are the floats whose patterns are multiples of `step`, and all
/// codes.
std::vector<Comparison> CompareConversions(std::uint64_t step);

}  // namespace narrowfloat::cuda
