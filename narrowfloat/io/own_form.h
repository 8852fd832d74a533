// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "narrowfloat/io/write_convention.h"

namespace narrowfloat::io {

/// Returns the spec of this library whose rowwise buffers hold the codes and scales of such a
/// weight; nullopt if there is none. Scales that are powers of two may become fp32.
std::optional<QuantSpec> OwnSpec(const ForeignWeight& form);

/// Returns the same for a tensor of another convention. Errors: Unsupported if no scheme has such
/// blocks and scales; the message begins with `operation`.
QuantSpec NeedOwnSpec(const std::string& operation, const StoredTensor& tensor);

/// Stores each of `tensor`'s entries in `out`, padding as zeros. The scale of a whole tensor is
/// kept as an amax, which rounds once where no amax gives that scale; of per-tensor FP8, `scale` is
/// the reciprocal of scale_inv and amax_rowwise the largest magnitude of the values. Requires:
/// tensor is AsStored of OwnSpec(weight.form) and the weight's shape; `out` has the bytes of each
/// entry.
void StoreOwnBuffers(const StoredTensor& tensor, const CanonicalWeight& weight,
                     std::span<const std::span<std::byte>> out);

}  // namespace narrowfloat::io
