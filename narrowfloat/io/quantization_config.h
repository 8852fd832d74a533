// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "narrowfloat/io/convention_writer.h"

/// The JSON texts beside a model's tensors that describe their quantization.
namespace narrowfloat::io {

/// Facts about a tensor that the configuration of its model depends on.
struct ModelTensor {
  std::string_view name;
  std::size_t rank = 0;
  bool quantized = false;
};

/// The texts that a convention writes to these files.
struct QuantizationConfig {
  std::string object;      // JSON text of config.json's quantization_config
  std::string owner = "";  // JSON text of hf_quant_config.json; empty: the convention has none
};

/// Returns the configuration that the convention's owner reads. It lists the modules with plain
/// matrices, and also the output head if the model has an embedding and no tensor of the head: the
/// two are tied then. `config` is the text of the input's config.json, or empty. Keeps its
/// `scale_fmt` within the same convention, since no scale changes. Requires: writer.written().
/// Errors: InvalidArgument if `config` is damaged.
QuantizationConfig ConfigOf(const ConventionWriter& writer, std::span<const ModelTensor> tensors,
                            const std::string& config);

/// Returns the configuration of this library's own convention. Loaders without support for it
/// reject the model, instead of initializing the weights that they do not find.
QuantizationConfig OwnConfig(const std::set<std::string>& specs);

/// Returns config.json's text with this quantization_config and without any other one, such as that
/// of the text model in a multimodal model. The other keys keep their order.
/// Errors: InvalidArgument if `config` is damaged or not an object, or if the result would have
/// more bytes or values than this library reads.
std::string WithQuantization(const std::string& config, const QuantizationConfig& quantization);

/// Returns config.json's text without a quantization_config in any of its locations. Errors: as
/// WithQuantization.
std::string WithoutQuantization(const std::string& config);

}  // namespace narrowfloat::io
