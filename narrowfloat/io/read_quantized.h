// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/detect_convention.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {

/// Thrown for a checkpoint that fits two conventions, if the caller names none.
class AmbiguousConvention : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

/// Detects the convention of a quantized checkpoint, or uses `from` if that is not empty, and
/// groups the tensors. `operation` begins messages. Errors: InvalidArgument for an unknown `from`,
/// if no tensor is quantized, metadata is lost or parts are missing; AmbiguousConvention;
/// Unsupported for a convention that is not read.
DetectedConvention ReadQuantized(const std::string& operation, Checkpoint& in,
                                 const std::string& from);

/// Does as ReadQuantized, but leaves a checkpoint without quantized tensors unchanged.
DetectedConvention ReadAny(const std::string& operation, Checkpoint& in, const std::string& from);

}  // namespace narrowfloat::io
