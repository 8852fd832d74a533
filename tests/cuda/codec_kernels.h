// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace narrowfloat::cuda {

/// How the device's conversion of one kind differs from its definition in numerics/.
struct Comparison {
  std::string name;
  std::uint64_t inputs = 0;
  unsigned differences = 0;
  std::uint32_t example = 0;  // one input that differs
};

/// Compares the conversions of one and two items of kernels/cuda/items.cuh, and the word of E2M1,
/// with their definitions, on the device: floats
/// whose patterns are multiples of `step`, and all codes.
std::vector<Comparison> CompareConversions(std::uint64_t step);

}  // namespace narrowfloat::cuda
