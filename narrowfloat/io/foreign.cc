// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/foreign.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/conventions/convention_row.h"
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

std::string_view WithoutDot(std::string_view suffix) {
  return suffix.substr(suffix.find_first_not_of("._"));
}

/// Finds what a row of names says of one tensor, as the reason that is shown; empty: nothing.
std::string ReasonOf(const Checkpoint& checkpoint, const TensorLocation& location,
                     const WeightNames& names) {
  const std::string& name = location.tensor->name;
  if (names.evidence == Evidence::kNone || !name.ends_with(names.codes)) return "";
  if (names.evidence == Evidence::kName) return std::string(WithoutDot(names.codes));
  const std::string stem = name.substr(0, name.size() - names.codes.size());
  const auto sibling = [&](std::string_view suffix) -> const TensorEntry* {
    const TensorLocation found = checkpoint.Find(stem + std::string(suffix));
    const bool plain = found.tensor != nullptr && !found.tensor->quantized;
    return plain ? &found.tensor->entries.front() : nullptr;
  };
  const bool fp8 = names.evidence == Evidence::kFp8;
  const FileDType codes = location.tensor->entries.front().dtype;
  const TensorEntry* scale = sibling(names.scale);
  if (scale == nullptr || (fp8 ? !IsFp8(codes) : codes != FileDType::kU8)) return "";
  if (names.evidence == Evidence::kBytePairs && scale->dtype != FileDType::kU8) return "";
  if (!names.global.empty() && sibling(names.global) == nullptr) return "";
  return fmt::format("{} {} with {}{}", fp8 ? "FP8" : "U8", WithoutDot(names.codes),
                     names.evidence == Evidence::kBytePairs ? "U8 " : "",
                     WithoutDot(names.global.empty() ? names.scale : names.global));
}

std::optional<ConventionGuess> GuessOfMarks(const Checkpoint& checkpoint,
                                            const ConventionRow& row) {
  for (const std::string_view key : row.metadata_marks) {
    for (const Shard& shard : checkpoint.shards()) {
      if (shard.file.header().metadata.contains(std::string(key))) {
        return {{std::string(row.name), fmt::format("metadata {}", key)}};
      }
    }
  }
  for (const std::string_view mark : row.marks) {
    for (const TensorLocation& location : checkpoint.tensors()) {
      if (location.tensor->name.ends_with(mark)) {
        return {{std::string(row.name), fmt::format("tensor {}", location.tensor->name)}};
      }
    }
  }
  return std::nullopt;
}

std::optional<ConventionGuess> GuessOfNames(const Checkpoint& checkpoint,
                                            const ConventionRow& row) {
  for (const WeightNames& names : row.weights) {
    for (const TensorLocation& location : checkpoint.tensors()) {
      const std::string reason = ReasonOf(checkpoint, location, names);
      if (reason.empty()) continue;
      return {{std::string(row.name), fmt::format("{}: {}", location.tensor->name, reason)}};
    }
  }
  return std::nullopt;
}

/// Names codes that no convention's rule finds.
std::optional<ConventionGuess> GuessOfRest(const Checkpoint& checkpoint) {
  constexpr std::string_view kTorchAoCodes = "_qdata";
  for (const TensorLocation& location : checkpoint.tensors()) {
    const std::string& name = location.tensor->name;
    if (name.ends_with(kTorchAoCodes)) {
      return {{"torchao without metadata", fmt::format("{}: codes of torchao", name)}};
    }
    if (name.ends_with(".weight") && IsFp8(location.tensor->entries.front().dtype)) {
      return {{"fp8 without scales", fmt::format("{}: FP8 weight without a scale", name)}};
    }
  }
  return std::nullopt;
}

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
  for (const auto guess_by : {&GuessOfMarks, &GuessOfNames}) {
    for (const ConventionRow* row : Conventions()) {
      if (const auto guess = guess_by(checkpoint, *row)) return *guess;
    }
  }
  if (const auto guess = GuessOfRest(checkpoint)) return *guess;
  return {std::string(kPlainName), "no tensor is quantized"};
}

}  // namespace narrowfloat::io
