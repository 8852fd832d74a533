// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/foreign.h"

namespace narrowfloat::io {

/// Tells the convention of a quantized checkpoint, or takes `from` for it, and groups its tensors.
/// Errors: InvalidArgument, beginning with `verb`, if no tensor is quantized, metadata is lost or
/// parts are missing; Unsupported for a convention that is not read.
ConventionGuess ReadQuantized(const std::string& verb, Checkpoint& in, const std::string& from);

/// Opens a checkpoint, plain or quantized, and groups its tensors by its convention. Errors: as
/// Checkpoint::Open and ReadQuantized, but for one without quantized tensors.
Checkpoint OpenGrouped(const std::string& verb, const std::string& path);

}  // namespace narrowfloat::io
