// SPDX-License-Identifier: Apache-2.0
#include "tools/companions.h"

#include "narrowfloat/io/companion.h"
#include "tools/command.h"

namespace narrowfloat::tools {
namespace {

constexpr const char* kKey = "quantization_config";

/// config.json with its keys in their order; null if there is none.
Json Config(const io::Checkpoint& in) {
  // Checked first: this parser accepts what that one refuses.
  if (io::ReadCompanion(in, io::kConfigFile).is_null()) return nullptr;
  return Json::parse(io::ReadCompanionText(in, io::kConfigFile));
}

std::string Text(const Json& config) {
  return config.dump(2) + "\n";
}

}  // namespace

Companions PlainCompanions(const io::Checkpoint& in) {
  Companions companions;
  if (!in.folder()) return companions;
  companions[io::kModelOptFile] = std::nullopt;
  Json config = Config(in);
  if (config.is_object() && config.contains(kKey)) {
    config.erase(kKey);
    companions[io::kConfigFile] = Text(config);
  }
  return companions;
}

Companions QuantizedCompanions(const io::Checkpoint& in, const std::string& quantization_config,
                               const std::string& owner_config) {
  Companions companions;
  if (!in.folder()) return companions;
  companions[io::kModelOptFile] = std::nullopt;
  if (!owner_config.empty()) companions[io::kModelOptFile] = Text(Json::parse(owner_config));
  Json config = Config(in);
  if (config.is_object()) {
    config[kKey] = Json::parse(quantization_config);
    companions[io::kConfigFile] = Text(config);
  }
  return companions;
}

}  // namespace narrowfloat::tools
