// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "narrowfloat/io/convention_writer.h"

/// The JSON texts beside a model's tensors that say how these are quantized.
namespace narrowfloat::io {

/// Facts about a tensor that the configuration of its model depends on.
struct ModelTensor {
  std::string_view name;
  std::size_t rank = 0;
  bool quantized = false;
};

/// Holds the texts that a convention writes into these files.
struct QuantizationConfig {
  std::string object;      // JSON text of config.json's quantization_config
  std::string owner = "";  // JSON text of hf_quant_config.json; empty: the convention has none
};

/// Returns the configuration that the convention's owner reads. It names the modules whose matrices
/// stay plain, and the output head too if the model has an embedding and no tensor of the head: it
/// is tied then. `config` is the text of the input's config.json, or empty: its `scale_fmt` is kept
/// in the same convention, since no scale changes. Requires: writer.written(). Errors:
/// InvalidArgument if `config` is damaged.
QuantizationConfig ConfigOf(const ConventionWriter& writer, std::span<const ModelTensor> tensors,
                            const std::string& config);

/// Returns the configuration of this library's own convention. Loaders that do not know it refuse
/// the model, instead of starting from weights that they do not find.
QuantizationConfig OwnConfig(const std::set<std::string>& specs);

/// Returns config.json's text with this quantization_config and without another one, as for the
/// text model of a multimodal one; the other keys keep their order.
/// Errors: InvalidArgument if `config` is damaged or no object.
std::string WithQuantization(const std::string& config, const QuantizationConfig& quantization);

/// Returns config.json's text without a quantization_config in any of its places. Errors: as
/// WithQuantization.
std::string WithoutQuantization(const std::string& config);

}  // namespace narrowfloat::io
