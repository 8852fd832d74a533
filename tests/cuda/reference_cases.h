// SPDX-License-Identifier: Apache-2.0
// Shapes and items of the tests that compare device memory with the CPU's scalar kernels.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/conformance/tensors.h"
#include "tests/cuda/device_tensors.h"

namespace narrowfloat::conformance {

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// Returns the options of a call of the CPU's scalar kernels on one thread.
const Execution& OnCpu();

/// Returns shapes that end inside blocks, words and tiles; for a device large shapes too.
std::vector<Shape> Shapes();

/// Returns a random placement. In a cycle, a direction or a type could always have the same one.
Placement NextPlacement();

FloatTensor RandomTensor(DType dtype, const Shape& shape, std::mt19937_64& random,
                         Range range = Range::kAll, Placement placement = Placement::kContiguous);

void FillRandom(QuantizedBuffers& buffers, std::mt19937_64& random);

/// Returns the seed of the run, for messages.
std::string Seed();

}  // namespace narrowfloat::conformance
