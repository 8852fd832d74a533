// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "narrowfloat/io/file_dtype.h"

namespace narrowfloat::io {

/// How the scale of the whole tensor enters a decoded value.
enum class GlobalScale : std::uint8_t { kNone, kMultiplies, kDivides };

/// The tensors that make up one quantized weight, as suffixes of a common stem.
struct WeightNames {
  std::string_view codes, scale;
  std::string_view plain;        // of the float tensor
  std::string_view global = "";  // of the scale of the whole tensor, if there is one
  GlobalScale global_scale = GlobalScale::kNone;
  bool plain_is_transposed = false;  // the last two dimensions of the float tensor are swapped
  bool blocked = false;  // codes have a dimension for the blocks and one for the bytes of a block
};

/// The values of a matrix that share a scale.
enum class BlockKind : std::uint8_t { kTensor, kRow, kTile128, kRow32, kRow16 };

/// How the scales of a matrix lie in a file.
enum class ScaleShape : std::uint8_t { kScalar, kOneItem, kMatrix, kVector, kTwoPairs };

/// One format that this library writes in a convention.
struct WrittenFormat {
  std::string_view name;     // as the owner calls it
  std::string_view element;  // of the codes
  BlockKind block;
  FileDType scale;
  ScaleShape scale_shape;
  std::size_t names;                     // its row in `weights`
  FileDType codes;                       // U8 for packed ones
  std::string_view quantization_config;  // JSON text of config.json's object, or of its keys
  std::string_view owner_config = "";    // JSON text of hf_quant_config.json
};

/// How one project stores quantized weights. Codes and scales have the meaning that their types
/// and shapes say (ForeignWeight); a row lists what differs between projects.
struct ConventionRow {
  std::string_view name;                          // as quant_method says it
  std::span<const std::string_view> other_names;  // that say the same
  std::span<const WeightNames> weights;           // tried in this order
  std::span<const std::string_view> accessories;  // suffixes of tensors that a float model lacks
  std::span<const WrittenFormat> written = {};
  std::string_view ignored = "";  // config.json's key for modules that are not quantized
  bool mixes = false;             // a model may have several formats, whose keys are then joined
};

// One file each, with its descendants.
extern const ConventionRow kComfyUi, kCompressedTensors, kDeepSeek, kDeepSeekV4, kFbgemm, kGptOss,
    kModelOpt, kMxfp8, kQuark;

/// All of them.
std::span<const ConventionRow* const> Conventions();

/// The convention of that name, or null.
const ConventionRow* FindConvention(std::string_view name);

}  // namespace narrowfloat::io
