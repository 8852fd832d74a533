// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/quantization_config.h"

namespace narrowfloat::tools {

class TensorRewriter;

/// Files beside the tensors that have another text in the output than in the input. The output does
/// not get a file without a text.
using Companions = std::map<std::string, std::optional<std::string>>;

/// Returns whether a file of a folder describes the quantization of tensors: ModelOpt's file, or a
/// member of config.json or of Mistral's params.json. Errors: InvalidArgument if one of the last
/// two is damaged; IoError.
bool DescribesQuantization(const std::filesystem::path& folder, const std::string& name);

/// Returns the files of a model without quantized tensors: config.json without its
/// quantization_config (no config.json if nothing else is in it), Mistral's params.json without its
/// quantization, and no file of ModelOpt's.
/// Errors: InvalidArgument if a file is damaged; IoError.
Companions PlainCompanions(const io::Checkpoint& in);

/// Returns config.json with a quantization_config, ModelOpt's file if the convention has it, and
/// params.json as in PlainCompanions. A folder without config.json gets one with only a
/// quantization_config. Errors: as PlainCompanions.
Companions QuantizedCompanions(const io::Checkpoint& in,
                               const io::QuantizationConfig& quantization);

/// Returns the files for the owner of the writer's convention, if `rewriter` keeps some matrices of
/// the result plain. Requires: writer.written(). Errors: as PlainCompanions.
Companions OwnerCompanions(const io::Checkpoint& in, const io::ConventionWriter& writer,
                           const TensorRewriter& rewriter);

}  // namespace narrowfloat::tools
