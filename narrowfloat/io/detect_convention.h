// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "narrowfloat/io/checkpoint.h"

namespace narrowfloat::io {

/// Names a checkpoint without quantized tensors.
inline constexpr std::string_view kPlainName = "plain";

/// Names a checkpoint that holds this library's buffers but not their metadata, which programs that
/// read and save tensors leave out.
inline constexpr std::string_view kLostMetadataName = "narrowfloat without metadata";

/// Names a checkpoint that fits two conventions, which read different values from it.
inline constexpr std::string_view kAmbiguousName = "modelopt or comfyui";

/// The convention that a checkpoint is written in, and how that was found.
struct DetectedConvention {
  std::string name;      // a convention's name or quant_method, "plain", or a text that tells why
                         // the checkpoint cannot be read
  std::string reason;    // the evidence in the checkpoint
  bool assumed = false;  // whether there is no evidence; commands then print `reason`
};

/// Finds the convention of a checkpoint: this library's own by its metadata, others by
/// hf_quant_config.json, by config.json's quant_method, else by keys of the metadata and by names,
/// types and shapes of the tensors. Errors: InvalidArgument if one of these files is damaged;
/// IoError.
DetectedConvention DetectConvention(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
