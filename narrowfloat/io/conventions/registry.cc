// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "narrowfloat/io/convention.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

constexpr std::string_view kAttentions[] = {"self_attn", "attn", "attention", "self_attention"};

/// The layers of queries, keys and values; the last two belong to latent attention.
constexpr std::string_view kProjections[] = {
    "q_proj", "k_proj", "v_proj", "qkv_proj", "kv_a_proj_with_mqa", "kv_b_proj"};

/// Parameters of an attention (compressed-tensors, vLLM) or of a projection (ModelOpt).
constexpr std::string_view kCacheScales[] = {
    "q_scale",        "k_scale",        "v_scale",      "kv_scale",     "q_global_scale",
    "k_global_scale", "v_global_scale", "q_zero_point", "k_zero_point", "v_zero_point"};

/// Parameters of an attention for the probabilities; AutoFP8 and Quark use the second name.
constexpr std::string_view kProbabilityScales[] = {"prob_scale", "prob_output_scale"};

bool IsOneOf(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

bool IsCacheScale(std::string_view name) {
  const std::string_view parameter = ParameterOf(name), module = ParameterOf(ModuleOf(name));
  const bool is_projection = IsOneOf(kProjections, module);
  if (parameter == "output_scale") return is_projection;  // AutoFP8, Quark
  if (IsOneOf(kProbabilityScales, parameter)) return IsOneOf(kAttentions, module);
  return IsOneOf(kCacheScales, parameter) && (is_projection || IsOneOf(kAttentions, module));
}

// The order matters if no file names the convention: the first row for which the tensors have
// evidence (WeightNames::evidence, marks) is used. Messages list conventions in this order.
std::span<const ConventionRow* const> Conventions() {
  static constexpr const ConventionRow* kRows[] = {
      &kDeepSeek, &kMxfp8, &kDeepSeekV4, &kFbgemm,  &kCompressedTensors, &kModelOpt,
      &kGptOss,   &kQuark, &kComfyUi,    &kTorchAo, &kUnscaledFp8};
  return kRows;
}

const ConventionRow* FindConvention(std::string_view name) {
  for (const ConventionRow* row : Conventions()) {
    if (row->name == name || std::ranges::find(row->other_names, name) != row->other_names.end()) {
      return row;
    }
  }
  return nullptr;
}

Metadata WithoutDescriptions(const Metadata& metadata) {
  Metadata rest = WithoutOwnKeys(metadata);
  for (const ConventionRow* row : Conventions()) {
    if (row->description_keys != nullptr) {
      for (const std::string& key : row->description_keys(metadata)) rest.erase(key);
    }
    for (const std::string_view mark : row->metadata_marks) rest.erase(std::string(mark));
  }
  return rest;
}

std::vector<std::string> ReadConventions() {
  std::vector<std::string> names = {std::string(kConventionName)};
  for (const ConventionRow* row : Conventions()) names.emplace_back(row->name);
  return names;
}

std::vector<std::string> WrittenConventions() {
  std::vector<std::string> names = OtherConventions();
  names.emplace(names.begin(), kConventionName);
  return names;
}

std::vector<std::string> OtherConventions() {
  std::vector<std::string> names;
  for (const ConventionRow* row : Conventions()) {
    if (!row->written.empty()) names.emplace_back(row->name);
  }
  return names;
}

void CheckIsConvention(const std::string& operation, std::string_view name,
                       const std::vector<std::string>& known) {
  if (name == kConventionName || FindConvention(name) != nullptr) return;
  RefuseConvention(operation, name, known);
}

void RefuseConvention(const std::string& operation, std::string_view name,
                      const std::vector<std::string>& known) {
  throw InvalidArgument(fmt::format("{}: unknown convention '{}'; there are: {}", operation, name,
                                    fmt::join(known, ", ")));
}

}  // namespace narrowfloat::io
