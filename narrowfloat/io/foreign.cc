// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/foreign.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "narrowfloat/io/companion.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

/// Returns the convention that the JSON files beside the tensors name, if they name one. ModelOpt's
/// own file is read before config.json.
std::optional<ConventionGuess> GuessOfCompanions(const Checkpoint& checkpoint) {
  const json owners = ReadCompanion(checkpoint, kModelOptFile);
  if (const auto name = TextAt(owners, {"producer", "name"})) return {{*name, kModelOptFile}};
  const json config = ReadCompanion(checkpoint, kConfigFile);
  if (const auto method = TextAt(config, {"quantization_config", "quant_method"})) {
    return {{*method, kConfigFile}};
  }
  return std::nullopt;
}

/// Returns the name of a code buffer of this library that has its scales but no metadata; nullptr
/// if the checkpoint has no such buffer.
const std::string* FindOrphan(const Checkpoint& checkpoint) {
  for (const TensorLocation& location : checkpoint.tensors()) {
    const std::string& name = location.tensor->name;
    if (location.tensor->quantized) continue;
    constexpr std::pair<Role, Role> kPairs[] = {{Role::kRowwiseData, Role::kRowwiseScaleInv},
                                                {Role::kColumnwiseData, Role::kColumnwiseScaleInv}};
    for (const auto& [codes, scales] : kPairs) {
      const std::string suffix = BufferName("", codes);
      if (!name.ends_with(suffix)) continue;
      const std::string stem = name.substr(0, name.size() - suffix.size());
      if (checkpoint.Find(BufferName(stem, scales)).tensor != nullptr) return &name;
    }
  }
  return nullptr;
}

bool IsFp8(FileDType dtype) {
  return dtype == FileDType::kF8E4M3 || dtype == FileDType::kF8E5M2;
}

/// What the neighbours of one tensor say. The rules are tried in this order, the first that fits
/// wins.
struct Neighbourhood {
  const Checkpoint& checkpoint;
  const TensorEntry& entry;
  std::string stem;  // the name without its suffix

  const TensorEntry* Sibling(std::string_view name) const {
    const TensorLocation found = checkpoint.Find(stem + std::string(name));
    return found.tensor == nullptr || found.tensor->quantized ? nullptr
                                                              : &found.tensor->entries.front();
  }
};

struct Rule {
  std::string_view suffix;
  const char* convention;
  const char* reason;
  bool (*fits)(const Neighbourhood&);
};

constexpr Rule kRules[] = {
    {".weight_packed", "compressed-tensors", "weight_packed",
     [](const Neighbourhood&) { return true; }},
    {"_blocks", "mxfp4", "U8 _blocks with U8 _scales",
     [](const Neighbourhood& n) {
       const TensorEntry* scales = n.Sibling("_scales");
       return n.entry.dtype == FileDType::kU8 && scales != nullptr &&
              scales->dtype == FileDType::kU8;
     }},
    {".comfy_quant", "comfyui", "comfy_quant", [](const Neighbourhood&) { return true; }},
    {".scale_weight", "comfyui", "scale_weight", [](const Neighbourhood&) { return true; }},
    {".weight", "modelopt", "U8 weight with weight_scale_2",
     [](const Neighbourhood& n) {
       return n.entry.dtype == FileDType::kU8 && n.Sibling(".weight_scale_2") != nullptr;
     }},
    {".weight", "quark", "U8 weight with U8 weight_scale",
     [](const Neighbourhood& n) {
       const TensorEntry* scale = n.Sibling(".weight_scale");
       return n.entry.dtype == FileDType::kU8 && scale != nullptr && scale->dtype == FileDType::kU8;
     }},
    {".weight", "fp8", "FP8 weight with weight_scale_inv, scale or qscale_weight",
     [](const Neighbourhood& n) {
       return IsFp8(n.entry.dtype) &&
              (n.Sibling(".weight_scale_inv") != nullptr || n.Sibling(".scale") != nullptr ||
               n.Sibling(".qscale_weight") != nullptr);
     }},
    {".weight", "compressed-tensors", "FP8 weight with weight_scale",
     [](const Neighbourhood& n) {
       return IsFp8(n.entry.dtype) && n.Sibling(".weight_scale") != nullptr;
     }},
    {".weight", "fp8 without scales", "FP8 weight without a scale",
     [](const Neighbourhood& n) { return IsFp8(n.entry.dtype); }},
};

}  // namespace

ConventionGuess GuessConvention(const Checkpoint& checkpoint) {
  if (const std::string* orphan = FindOrphan(checkpoint)) {
    return {
        std::string(kLostMetadataName),
        fmt::format("{}: a buffer of this library that __metadata__ does not describe", *orphan)};
  }
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (location.tensor->quantized) {
      return {std::string(kConventionName), "metadata of its tensors"};
    }
  }
  if (const auto guess = GuessOfCompanions(checkpoint)) return *guess;
  for (const Shard& shard : checkpoint.shards()) {
    if (shard.file.header().metadata.contains("tensor_names")) {
      return {"torchao", "metadata tensor_names"};
    }
  }
  if (checkpoint.Find("scaled_fp8").tensor != nullptr) return {"comfyui", "tensor scaled_fp8"};
  for (const Rule& rule : kRules) {
    for (const TensorLocation& location : checkpoint.tensors()) {
      const std::string& name = location.tensor->name;
      if (!name.ends_with(rule.suffix)) continue;
      const Neighbourhood neighbourhood{checkpoint, location.tensor->entries.front(),
                                        name.substr(0, name.size() - rule.suffix.size())};
      if (rule.fits(neighbourhood))
        return {rule.convention, fmt::format("{}: {}", name, rule.reason)};
    }
  }
  return {std::string(kPlainName), "no tensor is quantized"};
}

}  // namespace narrowfloat::io
