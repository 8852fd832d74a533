// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/config/selection.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace narrowfloat::config {
namespace {

// All patterns are matched against whole components, in lower case.

/// What the parameter of a linear layer is called.
constexpr const char* kWeights[] = {"weight", "in_proj_weight", "kernel"};

/// What the stacked weights of experts are called, which have no `weight` of their own.
constexpr const char* kExpertWeights[] = {"gate_up_proj", "gate_proj", "up_proj", "down_proj"};
constexpr const char* kExperts = "experts";

/// Modules that are no linear layers, or that are known to lose from quantization.
constexpr const char* kNorms[] = {
    "norm",        "norm[0-9]*",      "*_norm", "*_norm[0-9]*", "*layernorm", "*rmsnorm",
    "layer_norm*", "layernorm[0-9]*", "ln",     "ln_*",         "ln[0-9]*",
};
constexpr const char* kEmbeddings[] = {
    "*embedding", "*embeddings", "*_embed", "embed_*", "emb", "wte", "wpe",
    "shared",  // T5's
    "*bias",   // a table of relative positions, also T5's
};
constexpr const char* kHeads[] = {"lm_head", "embed_out"};
constexpr const char* kConvolutions[] = {"conv*", "*_conv", "*_conv[0-9]*"};

/// The module right before `weight` that makes it a router of a mixture of experts.
constexpr const char* kRouters[] = {"gate", "router", "shared_expert_gate"};

std::vector<std::string> Components(std::string_view name) {
  std::vector<std::string> components(1);
  for (const char c : name) {
    if (c == '.') {
      components.emplace_back();
    } else {
      components.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return components;
}

bool MatchesAny(const auto& patterns, const std::string& component) {
  return std::ranges::any_of(
      patterns, [&](const char* pattern) { return ::fnmatch(pattern, component.c_str(), 0) == 0; });
}

}  // namespace

bool IsLinearWeight(std::string_view name, const Shape& shape) {
  if (shape.size() < 2) return false;
  const std::vector<std::string> components = Components(name);
  const std::string& parameter = components.back();
  const std::string module = components.size() > 1 ? *(components.end() - 2) : "";
  const bool stacked = module == kExperts && MatchesAny(kExpertWeights, parameter);
  if (!stacked && !MatchesAny(kWeights, parameter)) return false;
  if (MatchesAny(kRouters, module)) return false;
  return std::none_of(components.begin(), std::prev(components.end()), [](const std::string& part) {
    return MatchesAny(kNorms, part) || MatchesAny(kEmbeddings, part) || MatchesAny(kHeads, part) ||
           MatchesAny(kConvolutions, part);
  });
}

bool IsSelected(const std::vector<SelectionRule>& rules, const std::string& name,
                std::optional<DType> dtype, const Shape& shape) {
  if (!dtype) return false;
  for (auto rule = rules.rbegin(); rule != rules.rend(); ++rule) {
    if (::fnmatch(rule->glob.c_str(), name.c_str(), 0) == 0) {
      return rule->action == SelectionRule::Action::kInclude;
    }
  }
  return IsLinearWeight(name, shape);
}

}  // namespace narrowfloat::config
