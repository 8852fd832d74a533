// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/quantization_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "narrowfloat/config/selection.h"
#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using Json = nlohmann::ordered_json;

/// Parses the text of a config.json, which must be an object.
nlohmann::json ParseConfig(const std::string& text) {
  const std::string source = fmt::format("config: {}", kConfigFile);
  nlohmann::json config = ParsePythonJson(source, text, kCompanionDepth);
  if (!config.is_object()) throw InvalidArgument(fmt::format("{} must be an object", source));
  return config;
}

/// Returns the modules whose matrix stays plain, by the names that owners use.
Json PlainModules(std::span<const ModelTensor> tensors, const nlohmann::json& model) {
  constexpr std::string_view kWeight = ".weight";
  std::map<std::string_view, bool> plain;  // by module, in the order of the names
  for (const ModelTensor& tensor : tensors) {
    if (!tensor.name.ends_with(kWeight)) continue;
    const std::string_view module = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    plain[module] = tensor.rank >= 2 && !tensor.quantized;
  }
  Json modules = Json::array();
  for (const auto& [module, is_plain] : plain) {
    if (is_plain) modules.push_back(module);
  }
  // A tied head is a module without a tensor of its own in any file.
  if (ValueAt(model, {"tie_word_embeddings"}) == true) {
    const std::string head =
        config::OutputHead(TextAt(model, {"model_type"}).value_or(std::string()));
    if (!plain.contains(head)) modules.push_back(head);
  }
  return modules;
}

}  // namespace

QuantizationConfig ConfigOf(const ConventionWriter& writer, std::span<const ModelTensor> tensors,
                            const std::string& config) {
  const Json ignored =
      PlainModules(tensors, config.empty() ? nlohmann::json() : ParseConfig(config));
  Json object = Json::object();
  for (const WrittenFormat* format : writer.formats()) {
    object.update(Json::parse(format->quantization_config));
  }
  object[std::string(writer.convention().ignored)] = ignored;
  const std::string_view owner_config = writer.formats().front()->owner_config;
  if (owner_config.empty()) return {object.dump()};
  Json owner = Json::parse(owner_config);
  owner["quantization"]["exclude_modules"] = ignored;
  return {object.dump(), owner.dump(2) + "\n"};
}

QuantizationConfig OwnConfig(const std::set<std::string>& specs) {
  const Json object = {{"quant_method", kConventionName},
                       {"spec", fmt::format("{}", fmt::join(specs, " "))}};
  return {object.dump()};
}

std::string WithQuantization(const std::string& config, const QuantizationConfig& quantization) {
  ParseConfig(config);
  return WithMember(config, kQuantizationKey, Json::parse(quantization.object));
}

std::string WithoutQuantization(const std::string& config) {
  ParseConfig(config);
  return WithoutMember(config, kQuantizationKey);
}

}  // namespace narrowfloat::io
