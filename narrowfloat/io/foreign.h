// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "narrowfloat/io/checkpoint.h"

namespace narrowfloat::io {

/// Names a checkpoint without quantized tensors.
inline constexpr std::string_view kPlainName = "plain";

/// Names a checkpoint that holds this library's buffers but not their metadata, which programs that
/// read and save tensors drop.
inline constexpr std::string_view kLostMetadataName = "narrowfloat without metadata";

/// The convention that a checkpoint is written in, and how that was found.
struct ConventionGuess {
  std::string name;    // "narrowfloat", "plain", or a foreign convention's quant_method
  std::string reason;  // what in the checkpoint says so
};

/// Our own convention is known; others are guessed from hf_quant_config.json, from config.json's
/// quant_method, else from the names and types of the tensors. Errors: InvalidArgument if one of
/// these files is damaged; IoError.
ConventionGuess GuessConvention(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
