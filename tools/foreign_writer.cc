// SPDX-License-Identifier: Apache-2.0
#include "tools/foreign_writer.h"

#include <fmt/format.h>

#include <string_view>

#include "narrowfloat/config/selection.h"
#include "narrowfloat/io/companion.h"
#include "tools/command.h"

namespace narrowfloat::tools {
namespace {

/// The modules whose matrix stays as it is, by the names that owners use.
Json IgnoredModules(const io::Checkpoint& in, const TensorRewriter& rewriter) {
  constexpr std::string_view kWeight = ".weight";
  Json modules = Json::array();
  for (const io::TensorLocation& location : in.tensors()) {
    const io::StoredTensor& tensor = *location.tensor;
    const bool matrix = tensor.IsPlain() && tensor.shape().size() >= 2;
    if (!matrix || rewriter.Rewrites(tensor) || !tensor.name.ends_with(kWeight)) continue;
    modules.push_back(tensor.name.substr(0, tensor.name.size() - kWeight.size()));
  }
  // A tied head is a module without a tensor of its own in any file.
  const auto config = io::ReadCompanion(in, io::kConfigFile);
  if (io::ValueAt(config, {"tie_word_embeddings"}) == true) {
    const std::string head =
        config::OutputHead(io::TextAt(config, {"model_type"}).value_or(std::string()));
    if (in.Find(head + std::string(kWeight)).tensor == nullptr) modules.push_back(head);
  }
  return modules;
}

}  // namespace

Companions ForeignWriter::Configuration(const io::Checkpoint& in,
                                        const TensorRewriter& rewriter) const {
  const Json ignored = IgnoredModules(in, rewriter);
  Json config = Json::object();
  for (const io::WrittenFormat* format : formats()) {
    config.update(Json::parse(format->quantization_config));
  }
  config[std::string(convention().ignored)] = ignored;
  std::string owner;
  const std::string_view owner_config = formats().front()->owner_config;
  if (!owner_config.empty()) {
    Json object = Json::parse(owner_config);
    object["quantization"]["exclude_modules"] = ignored;
    owner = object.dump();
  }
  return QuantizedCompanions(in, config.dump(), owner);
}

}  // namespace narrowfloat::tools
