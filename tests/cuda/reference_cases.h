// SPDX-License-Identifier: Apache-2.0
// Shapes and items with which the tests compare device memory with the CPU's scalar kernels.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "narrowfloat/tensor/error.h"
#include "tests/conformance/tensors.h"
#include "tests/cuda/device_tensors.h"

namespace narrowfloat::conformance {

inline constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

/// Returns the options of a call of the CPU's scalar kernels on one thread.
const Execution& OnCpu();

/// Returns shapes that end inside blocks, words and tiles. A device takes large ones too.
std::vector<Shape> Shapes();

/// Draws a placement. A sequence that repeats could give one direction or type always the same.
Placement NextPlacement();

FloatTensor RandomTensor(DType dtype, const Shape& shape, std::mt19937_64& random,
                         Range range = Range::kAll, Placement placement = Placement::kContiguous);

void FillRandom(QuantizedBuffers& buffers, std::mt19937_64& random);

/// Returns the seed of the run, for messages.
std::string Seed();

/// Returns the message of the library's error that the call throws, or an empty string.
template <class F>
std::string MessageOf(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace narrowfloat::conformance
