// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "narrowfloat/io/checkpoint.h"

namespace narrowfloat::io {

/// Names a checkpoint without quantized tensors.
inline constexpr std::string_view kPlainName = "plain";

/// Names a checkpoint with this library's buffers but without their metadata. Programs that read
/// and save tensors drop the metadata.
inline constexpr std::string_view kLostMetadataName = "narrowfloat without metadata";

/// Names a checkpoint that fits two conventions with different values.
inline constexpr std::string_view kAmbiguousName = "modelopt or comfyui";

/// The convention of a checkpoint, and the evidence for it.
struct DetectedConvention {
  std::string name;      // a convention's name or quant_method, "plain", or the reason why the
                         // checkpoint cannot be read
  std::string reason;    // the evidence in the checkpoint
  bool assumed = false;  // whether there is no evidence; commands then print `reason`
};

/// Finds the convention of a checkpoint: this library's own by its metadata, others by
/// hf_quant_config.json, by config.json's quant_method, else by keys of the metadata and by names,
/// types and shapes of the tensors. Errors: InvalidArgument if one of these files is damaged;
/// IoError.
DetectedConvention DetectConvention(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
