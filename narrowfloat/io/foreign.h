// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "narrowfloat/io/checkpoint.h"

namespace narrowfloat::io {

/// What a checkpoint without quantized tensors is called.
inline constexpr std::string_view kPlainName = "plain";

/// Who wrote the checkpoint.
struct ConventionGuess {
  std::string name;    // "narrowfloat", "plain", or a foreign convention's quant_method
  std::string reason;  // what in the checkpoint says so
};

/// Our own convention is known; others are guessed from config.json's quant_method, else from the
/// names and types of the tensors.
ConventionGuess GuessConvention(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
