// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/write_convention.h"
#include "narrowfloat/tensor/layout.h"

namespace narrowfloat::tools {

/// The codes and scales of one direction of a tensor.
struct OwnDirection {
  Direction direction;
  io::CanonicalWeight weight;
};

/// Returns each direction that a tensor of this library stores, for any order of its scales.
/// Columnwise codes keep their stored orientation. `input` has the bytes of each of the tensor's
/// entries; the codes refer to these. Requires: tensor.quantized.
std::vector<OwnDirection> DirectionsOf(const io::StoredTensor& tensor,
                                       const std::vector<std::span<const std::byte>>& input);

}  // namespace narrowfloat::tools
