// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "narrowfloat/io/write_convention.h"

namespace narrowfloat::io {

/// Returns the spec of this library with rowwise buffers that can store a weight's codes and
/// scales; nullopt if no spec can. Power-of-two scales may become fp32.
std::optional<QuantSpec> OwnSpec(const ForeignWeight& form);

/// Does as OwnSpec for a tensor of another convention. Errors: Unsupported if no scheme has such
/// blocks and scales; `operation` begins the message.
QuantSpec NeedOwnSpec(const std::string& operation, const StoredTensor& tensor);

/// Stores each of `tensor`'s entries in `out`, with zeros as padding. Stores the scale of a whole
/// tensor as an amax, which is rounded if no amax gives exactly that scale. For per-tensor FP8,
/// `scale` is the reciprocal of scale_inv, and amax_rowwise the largest magnitude of the values.
/// Requires: tensor is AsStored of OwnSpec(weight.form) and the weight's shape; `out` has the bytes
/// of each entry.
void StoreOwnBuffers(const StoredTensor& tensor, const CanonicalWeight& weight,
                     std::span<const std::span<std::byte>> out);

}  // namespace narrowfloat::io
