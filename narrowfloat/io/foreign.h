// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "narrowfloat/io/checkpoint.h"

namespace narrowfloat::io {

/// What a checkpoint without quantized tensors is called.
inline constexpr std::string_view kPlainName = "plain";

/// What a checkpoint is called that has this library's buffers without the metadata that says what
/// they are: programs that read and save tensors lose it.
inline constexpr std::string_view kLostMetadataName = "narrowfloat without metadata";

/// Who wrote the checkpoint.
struct ConventionGuess {
  std::string name;    // "narrowfloat", "plain", or a foreign convention's quant_method
  std::string reason;  // what in the checkpoint says so
};

/// Our own convention is known; others are guessed from hf_quant_config.json, from config.json's
/// quant_method, else from the names and types of the tensors. Errors: InvalidArgument if one of
/// these files is damaged; IoError.
ConventionGuess GuessConvention(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
