// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/io/file_dtype.h"
#include "narrowfloat/io/safetensors_header.h"
#include "narrowfloat/io/tensor_name.h"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat::io {

/// Use of the scale of the whole tensor in decoding a value.
enum class GlobalScale : std::uint8_t { kNone, kMultiplies, kDivides };

/// Returns the factor of a block's codes: its scale times, or divided by, the scale of the whole
/// tensor, in fp32. Division by zero gives zero: that expert saw no data.
inline float CombineScales(float block, float whole, GlobalScale use) {
  if (use == GlobalScale::kNone) return block;
  if (use == GlobalScale::kMultiplies) return block * whole;
  return whole == 0 ? 0.0f : block / whole;
}

/// Returns a scale of the whole tensor that multiplies as one that divides, or the reverse.
inline float ReciprocalScale(float whole) {
  return CombineScales(1.0f, whole, GlobalScale::kDivides);
}

class Checkpoint;

/// Evidence of a convention in a checkpoint without a description: a tensor with the suffix of the
/// codes and, except for kName, their type and the scale beside it.
enum class Evidence : std::uint8_t {
  kNone,
  kName,       // the suffix alone
  kFp8,        // FP8 codes with a scale, and the scale of the whole tensor if the row has one
  kBytes,      // as kFp8 with U8 codes
  kBytePairs,  // as kFp8 with U8 codes and U8 scales
  kInt8Pairs,  // as kFp8 with I8 codes and F8_E8M0 scales
};

/// The block of a weight with one scale per row.
inline constexpr BlockShape kWholeRow{1, 0};

/// The tensors of one quantized weight, as suffixes of a common stem.
struct WeightNames {
  std::string_view codes, scale;
  std::string_view plain;        // suffix of the float tensor
  std::string_view global = "";  // suffix of the scale of the whole tensor, if there is one
  GlobalScale global_scale = GlobalScale::kNone;
  bool plain_is_transposed = false;  // the last two dimensions of the float tensor are swapped
  bool blocked = false;  // codes have a dimension for the blocks and one for the bytes of a block
  bool scales_of_columns = false;  // each column of a matrix has one scale
  bool is_written = true;          // false: names that are read only
  Evidence evidence = Evidence::kNone;
};

/// A weight as a file describes it.
struct WeightDescription {
  std::string plain;                       // name of the float tensor
  std::string codes, scale;                // names of its tensors; an empty scale is 1
  std::string global = "";                 // scale of the whole tensor, if there is one
  std::vector<FileDType> code_types;       // allowed types of its codes
  std::optional<BlockShape> block{};       // values that share a scale; 0: the size of the matrix
  bool swizzled = false;                   // scales are in the tiles that GEMMs read
  bool high_half_first = false;            // the high half of a byte has the first code
  std::vector<std::string> accessories{};  // names of tensors that a float model does not have
};

/// The values of a matrix that share a scale.
enum class BlockKind : std::uint8_t { kTensor, kRow, kTile128, kRow32, kRow16 };

/// Shape of the scales of a matrix in a file.
enum class ScaleShape : std::uint8_t { kScalar, kOneItem, kMatrix, kVector, kTwoPairs };

/// One format that this library writes in a convention.
struct WrittenFormat {
  std::string_view name;     // in the owner's documents
  std::string_view element;  // of the codes
  BlockKind block;
  FileDType scale;
  ScaleShape scale_shape;
  std::size_t names;                     // index of its row in `weights`
  FileDType codes;                       // U8 for packed codes
  std::string_view quantization_config;  // JSON text of config.json's object, or of its keys
  std::string_view owner_config = "";    // JSON text of hf_quant_config.json
  std::string_view input_scale = "";     // suffix of the input scale that its readers need
  bool experts_only = false;             // whether its readers expect it only in routed experts
};

/// One project's form of stored quantized weights. The types and shapes of codes and scales give
/// their meaning (ForeignWeight); a row has the differences between projects.
struct ConventionRow {
  std::string_view name;                          // value of quant_method in config.json
  std::span<const std::string_view> other_names;  // other values of quant_method
  std::span<const WeightNames> weights;           // tried in this order
  std::span<const std::string_view> accessories;  // suffixes of tensors that float models lack
  /// Suffixes of input scales, which replace kPlainWeight. Float models do not have these tensors.
  std::span<const std::string_view> input_scales = {};
  bool has_cache_scales = false;  // whether its models may have tensors with IsCacheScale(name)
  std::span<const WrittenFormat> written = {};
  std::span<const std::string_view> refused =
      {};                             // suffixes of tensors that change the meaning of codes
  const char* refused_key = nullptr;  // key of quantization_config with the same effect
  std::string_view ignored = "";      // key of quantization_config for unquantized modules
  /// True if readers compare `ignored` with the module names of the loaded model; these may differ
  /// from the names in files. Readers of the other conventions translate the files' names.
  bool ignored_by_module = false;
  const char* kept_key = nullptr;  // key of quantization_config that conversions keep
  bool mixes = false;              // a model may have several formats; their keys are then joined
  /// True if transformers, where it decodes weights, distributes scales evenly over rows and
  /// columns.
  bool spreads_scales = false;
  std::span<const std::string_view> marks = {};           // suffixes of tensors that identify it
  std::span<const std::string_view> metadata_marks = {};  // keys of __metadata__ that identify it
  /// Returns the weights that the files describe; null if this convention has no descriptions.
  /// Errors: InvalidArgument if a description is damaged; Unsupported for a format that is not
  /// read; IoError.
  std::vector<WeightDescription> (*describe)(const Checkpoint&) = nullptr;
  /// Returns the keys of a file's __metadata__ that describe its tensors, besides metadata_marks;
  /// null if there are no others.
  std::vector<std::string> (*description_keys)(const Metadata&) = nullptr;
};

// The rows. conventions/*.cc define one per project.
extern const ConventionRow kComfyUi, kCompressedTensors, kDeepSeek, kDeepSeekV4, kFbgemm, kGptOss,
    kModelOpt, kMxfp8, kQuark, kTorchAo, kUnscaledFp8;

inline constexpr std::string_view kTorchAoCodes = "_qdata";  // suffix of the codes of kTorchAo

/// Returns whether a tensor is a parameter of quantized attention (KV cache, queries or
/// probabilities), by the last two components of its name. Float models do not have it.
bool IsCacheScale(std::string_view name);

/// Returns all conventions.
std::span<const ConventionRow* const> Conventions();

/// Returns the convention with this name, or null if none has it.
const ConventionRow* FindConvention(std::string_view name);

/// Returns a file's __metadata__ without the keys that describe quantized tensors, in this
/// convention or others: a result without these tensors would otherwise not be readable.
Metadata WithoutDescriptions(const Metadata& metadata);

/// Returns the names of the readable conventions, or of the written ones, with this library's own
/// one first.
std::vector<std::string> ReadConventions();
std::vector<std::string> WrittenConventions();

/// Returns the names of the conventions that are written, without this library's own.
std::vector<std::string> OtherConventions();

/// Checks that there is a convention of that name, which may be this library's own one or one that
/// is not written. `operation` begins the message, which lists the names in `known`. Errors:
/// InvalidArgument.
void CheckIsConvention(const std::string& operation, std::string_view name,
                       const std::vector<std::string>& known);

/// Rejects a name with the message of CheckIsConvention. Errors: InvalidArgument, always.
[[noreturn]] void RefuseConvention(const std::string& operation, std::string_view name,
                                   const std::vector<std::string>& known);

}  // namespace narrowfloat::io
