// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "narrowfloat/io/write_convention.h"

namespace narrowfloat::io {

/// Returns the spec of this library whose rowwise buffers hold the codes and scales of such a
/// weight; nullopt if there is none. Scales that are powers of two may become fp32.
std::optional<QuantSpec> OwnSpec(const ForeignWeight& form);

/// Returns the bytes of each of `tensor`'s entries. The scale of a whole tensor is kept as an amax,
/// which rounds once where no amax gives that scale; of per-tensor FP8, `scale` is the reciprocal
/// of scale_inv and amax_rowwise the largest magnitude of the values.
/// Requires: tensor is AsStored of OwnSpec(weight.form) and the weight's shape.
std::vector<std::vector<std::byte>> OwnBuffers(const StoredTensor& tensor,
                                               const CanonicalWeight& weight);

}  // namespace narrowfloat::io
