// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "narrowfloat/tensor/plan.h"

namespace narrowfloat {

/// One size of a buffer as a function of the tensor's shape: the product of the tensor's
/// `dimensions`, divided by `divisor` (rounded up), then rounded up to a multiple of `multiple`.
struct SizeRule {
  std::vector<std::size_t> dimensions;  // empty: the product is 1
  std::int64_t divisor = 1, multiple = 1;
};

/// A BufferPlan with size rules instead of sizes.
struct BufferRule {
  Role role;
  DType dtype;
  std::vector<SizeRule> sizes;
  Role storage;
};

/// Returns the plan of every tensor of `rank` dimensions: PlanQuantize(spec, shape) for all valid
/// shapes with an even packed dimension. For compilers that keep sizes as symbols.
/// Errors: InvalidArgument if the spec is not valid.
std::vector<BufferRule> PlanRules(const QuantSpec& spec, std::size_t rank);

}  // namespace narrowfloat
