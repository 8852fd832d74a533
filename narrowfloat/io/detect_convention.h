// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "narrowfloat/io/checkpoint.h"

namespace narrowfloat::io {

/// Result of a detection. It is not read from the name, because a quant_method may be any text.
enum class Detection : std::uint8_t { kConvention, kPlain, kLostMetadata, kAmbiguous };

/// The convention of a checkpoint, and the evidence for it.
struct DetectedConvention {
  std::string name;      // a convention's name or quant_method, "plain", or the reason why the
                         // checkpoint cannot be read
  std::string reason;    // the evidence in the checkpoint
  bool assumed = false;  // whether there is no evidence; commands then print `reason`
  Detection detection = Detection::kConvention;
  /// For messages, if a file states that weights are quantized, but no tensor can hold codes: this,
  /// and what to remove. Empty otherwise.
  std::string stale = "";
};

/// Finds the convention of a checkpoint: this library's own by its metadata, others by
/// hf_quant_config.json, by config.json's quant_method, else by keys of the metadata and by names,
/// types and shapes of the tensors. A description without a quant_method, and integer codes of no
/// known names, are an unknown convention. Errors: InvalidArgument if one of these files is
/// damaged; IoError.
DetectedConvention DetectConvention(const Checkpoint& checkpoint);

/// Finds buffers of this library without their metadata, in a checkpoint of any convention.
std::optional<DetectedConvention> FindLostMetadata(const Checkpoint& checkpoint);

}  // namespace narrowfloat::io
