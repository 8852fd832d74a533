// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/quantization_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "narrowfloat/config/selection.h"
#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/io/tensor_name.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using Json = nlohmann::ordered_json;

/// Parses the text of a config.json. Errors: InvalidArgument if it is not an object.
nlohmann::json ParseConfig(const std::string& text) {
  const std::string source = fmt::format("config: {}", kConfigFile);
  nlohmann::json config = ParsePythonJson(source, text, kCompanionDepth);
  if (!config.is_object()) throw InvalidArgument(fmt::format("{} must be an object", source));
  return config;
}

/// Returns whether a model of this type has an embedding, but not the output head `head`: the two
/// are tied then. config.json may not state this, because models have their own defaults.
bool HasTiedHead(std::span<const ModelTensor> tensors, const std::string& model_type,
                 const std::string& head) {
  const auto is_head = [&](const ModelTensor& tensor) {
    const std::string_view module = ModuleOf(tensor.name);
    return tensor.rank >= 2 && (module == head || module.ends_with("." + head));
  };
  return std::ranges::none_of(tensors, is_head) &&
         std::ranges::any_of(tensors, [&](const ModelTensor& tensor) {
           return tensor.rank == 2 && config::IsEmbedding(tensor.name, model_type);
         });
}

/// Prefixes that readers may add to the name of a module: none; `model.` if the model has an output
/// head; and `language_model.` for the text model of a multimodal one. Since version 4.52,
/// transformers puts it after `model.`; earlier versions put it before.
constexpr std::string_view kModelPrefixes[] = {"", "model.", "language_model.",
                                               "model.language_model.", "language_model.model."};

/// Returns a module's name without its prefixes of kModelPrefixes.
std::string_view InnerName(std::string_view module) {
  for (const std::string_view prefix : {"model.", "language_model."}) {
    if (module.starts_with(prefix)) return InnerName(module.substr(prefix.size()));
  }
  return module;
}

/// Returns the names that readers may use for a module. Towers of CLIP and SigLIP have a component
/// `vision_model`; transformers 5 drops it.
std::vector<std::string> Spellings(std::string_view module) {
  constexpr std::string_view kTower = "vision_tower.", kOldTower = "vision_tower.vision_model.";
  const std::string inner(InnerName(module));
  std::vector<std::string> inners = {inner};
  if (inner.starts_with(kOldTower)) {
    inners.push_back(std::string(kTower) + inner.substr(kOldTower.size()));
  }
  std::vector<std::string> spellings;
  for (const std::string& name : inners) {
    for (const std::string_view prefix : kModelPrefixes) {
      spellings.push_back(std::string(prefix) + name);
    }
  }
  return spellings;
}

/// Appends the other spellings of plain modules, except spellings that quantized modules may have.
void AddSpellings(std::span<const ModelTensor> tensors, std::vector<std::string>& plain) {
  std::set<std::string> taken(plain.begin(), plain.end());
  for (const ModelTensor& tensor : tensors) {
    if (!tensor.quantized) continue;
    for (std::string& spelling : Spellings(StemOf(tensor.name))) taken.insert(std::move(spelling));
  }
  const std::size_t modules = plain.size();
  for (std::size_t i = 0; i < modules; ++i) {
    for (std::string& spelling : Spellings(plain[i])) {
      if (taken.insert(spelling).second) plain.push_back(std::move(spelling));
    }
  }
}

/// Returns the modules with a plain matrix, by the names that owners use. Stacked experts are
/// parameters of one module. Returns the module if all of them are plain, else their own names.
std::vector<std::string> PlainModules(std::span<const ModelTensor> tensors,
                                      const nlohmann::json& model) {
  std::set<std::string_view> mixed;  // modules of experts with quantized and plain ones
  for (const ModelTensor& tensor : tensors) {
    if (tensor.quantized && config::IsStackedExperts(tensor.name)) {
      mixed.insert(ModuleOf(tensor.name));
    }
  }
  std::set<std::string_view> plain;  // in the order of the names
  for (const ModelTensor& tensor : tensors) {
    if (tensor.rank < 2 || tensor.quantized) continue;
    const std::string_view module = ModuleOf(tensor.name);
    if (tensor.name.ends_with(kPlainWeight)) plain.insert(module);
    if (!config::IsStackedExperts(tensor.name)) continue;
    plain.insert(mixed.contains(module) ? tensor.name : module);
  }
  std::vector<std::string> modules(plain.begin(), plain.end());
  const std::string type = TextAt(model, {"model_type"}).value_or(std::string());
  const std::string head = config::OutputHead(type);
  if (HasTiedHead(tensors, type, head)) modules.push_back(head);
  return modules;
}

/// Copies the convention's kept_key, if the input has the same convention and the output's formats
/// have not set it.
void KeepKey(const ConventionRow& convention, const nlohmann::json& input, Json& output) {
  if (convention.kept_key == nullptr || TextAt(input, {"quant_method"}) != convention.name) return;
  const auto value = TextAt(input, {convention.kept_key});
  if (value) output.emplace(convention.kept_key, *value);
}

std::string Without(const std::string& text, const QuantizationPlace& place) {
  return place.object == nullptr ? WithoutMember(text, place.key)
                                 : WithoutMember(text, place.object, place.key);
}

}  // namespace

QuantizationConfig ConfigOf(const ConventionWriter& writer, std::span<const ModelTensor> tensors,
                            const std::string& config) {
  const nlohmann::json model = config.empty() ? nlohmann::json() : ParseConfig(config);
  std::vector<std::string> ignored = PlainModules(tensors, model);
  if (writer.convention().ignored_by_module) AddSpellings(tensors, ignored);
  Json object = Json::object();
  for (const WrittenFormat* format : writer.formats()) {
    object.update(Json::parse(format->quantization_config));
  }
  KeepKey(writer.convention(), QuantizationOf(model), object);
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
  std::string text = config;
  for (const QuantizationPlace& place : std::span(kQuantizationPlaces).subspan(1))
    text = Without(text, place);
  text = WithMember(text, kQuantizationKey, Json::parse(quantization.object));
  if (text.size() > kMaxCompanionBytes) {
    throw InvalidArgument(fmt::format("config: {} must have at most {} bytes, got {}", kConfigFile,
                                      kMaxCompanionBytes, text.size()));
  }
  ParseConfig(text);  // refuses too many values
  return text;
}

std::string WithoutQuantization(const std::string& config) {
  ParseConfig(config);
  std::string text = config;
  for (const QuantizationPlace& place : kQuantizationPlaces) text = Without(text, place);
  return text;
}

}  // namespace narrowfloat::io
