// SPDX-License-Identifier: Apache-2.0
// libstdc++'s limit of the states of a regular expression, before its headers: bounds the time of
// a match, and the stack, which grows with the states. No other file includes <regex>.
#define _GLIBCXX_REGEX_STATE_LIMIT 10000  // NOLINT(bugprone-reserved-identifier)
#include "narrowfloat/config/selection.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <iterator>
#include <regex>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::config {
namespace {

constexpr std::string_view kRegexPrefix = "re:";
constexpr std::size_t kMaxPatternBytes = 1024;  // parsing a regular expression is recursive
constexpr std::size_t kMaxLookaheads = 1;       // each one matches the rest of the name again
/// `__polynomial` follows all alternatives at once, without recursion per character. Searching with
/// backtracking takes exponential time for (a|aa)*x. `nosubs`: groups need not be recorded.
constexpr auto kRegexFlags =
    std::regex::ECMAScript | std::regex::nosubs | std::regex_constants::__polynomial;

// Patterns are compared with whole components of a name, in lower case.
using Patterns = std::initializer_list<const char*>;

/// Names of a linear layer's weight.
constexpr const char* kWeight = "weight";
constexpr const char* kFlaxWeight = "kernel";  // Keras' too; stored as [inputs, outputs]
constexpr Patterns kWeights = {kWeight, "in_proj_weight", kFlaxWeight};

/// Names of the stacked weights of experts; these have no component `weight`.
constexpr Patterns kExpertWeights = {"gate_up_proj", "gate_proj", "up_proj", "down_proj"};
constexpr Patterns kExperts = {"experts"};

/// Position that a component must have in a name.
enum class Place { kAnywhere, kFirst, kLast, kAlone };  // kAlone: the name's only module

/// Modules that are not linear layers, or known to lose accuracy from quantization.
struct LeftModule {
  const char* what;
  Place place;
  Patterns components;
};

constexpr const char* kEmbedding = "embedding";

constexpr LeftModule kLeft[] = {
    {"norm",
     Place::kAnywhere,
     {"norm", "norm[0-9]*", "*_norm", "*_norm[0-9]*", "layernorm",
      "*[!e]layernorm",  // not RoBERTa-PreLayerNorm
      "*rmsnorm", "layer_norm*", "layernorm[0-9]*", "ln", "ln_*", "ln[0-9]*"}},
    {kEmbedding,
     Place::kAnywhere,
     {"*embedding", "*embeddings", "*_embed", "embed", "embed_*", "*_embeds_layer", "emb", "wte",
      "wpe",
      "shared",   // T5's
      "*bias"}},  // a table of relative positions, in T5 too
    {kEmbedding,
     Place::kLast,
     {"*_emb", "*_table", "codebook", "queries_embedder", "queries_features", "query_feat",
      "*[!do]_token", "*[!do]_tokens",  // not `..._to_token`, nor Fuyu's `vision_embed_tokens`
      "reference_points"}},             // a linear layer in Deformable DETR, with two outputs only
    {kEmbedding, Place::kAnywhere, {"*_embeds_layers"}},  // a list of embeddings in Bark
    {"output head",
     Place::kAnywhere,
     {"lm_head", "embed_out", "shared_head", "vocab_projector", "vocab_transform",
      "generator_predictions", "discriminator_predictions"}},
    {"output head", Place::kFirst, {"cls", "classifier", "score", "qa_outputs", "pred_layer"}},
    {"output head", Place::kAlone, {"output", "head", "proj_out"}},
    {"convolution", Place::kAnywhere, {"conv*", "*_conv", "*_conv[0-9]*"}},
    {"router", Place::kAnywhere, {"router"}},
    {"router", Place::kLast, {"gate", "shared_expert_gate", "wg"}},
    {"LoRA", Place::kAnywhere, {"lora_*"}},
    {"head of further tokens", Place::kAnywhere, {"eh_proj", "mtp"}},
};

/// By model_type: models with an embedding that the names above do not match.
constexpr Patterns kUnnamedEmbeddingModels = {"ctrl"};
constexpr Patterns kUnnamedEmbeddings = {"w"};

/// By model_type: models with Conv1D instead of linear layers; it stores [inputs, outputs].
constexpr Patterns kConv1dModels = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer",
                                    "clvp*"};
/// Names of Conv1D layers in these models; other layers are linear.
constexpr Patterns kConv1dNames = {"c_attn", "c_proj", "c_fc", "q_attn"};
/// By model_type: models with stacked experts of [experts, inputs, outputs].
constexpr Patterns kTransposedExperts = {"gpt_oss", "llama4",    "llama4_text",
                                         "aria",    "aria_text", "openai_privacy_filter"};
/// By model_type: models with stacked experts of [experts, inputs, outputs] in the published files,
/// and of [experts, outputs, inputs] in files that transformers saves.
constexpr Patterns kEitherExperts = {"qwen3_vl_moe*"};

/// By model_type: the output head, if its name is not lm_head.
constexpr struct {
  Patterns models;
  const char* head;
} kOutputHeads[] = {
    {{"bert", "mobilebert", "squeezebert", "deberta*", "fnet"}, "cls.predictions.decoder"},
    {{"roberta*", "xlm-roberta*", "camembert", "mpnet"}, "lm_head.decoder"},
    {{"albert"}, "predictions.decoder"},
    {{"distilbert"}, "vocab_projector"},
    {{"electra"}, "generator_lm_head"},
    {{"whisper"}, "proj_out"},
    {{"xlm", "flaubert"}, "pred_layer.proj"},
};

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

bool MatchesAny(const Patterns& patterns, const std::string& component) {
  return std::ranges::any_of(
      patterns, [&](const char* pattern) { return ::fnmatch(pattern, component.c_str(), 0) == 0; });
}

/// Returns true if the modules of a name match. Requires: at least one module.
bool Stands(const LeftModule& left, const std::vector<std::string>& modules) {
  const auto matches = [&](const std::string& module) {
    return MatchesAny(left.components, module);
  };
  switch (left.place) {
    case Place::kAnywhere:
      return std::ranges::any_of(modules, matches);
    case Place::kFirst:
      return matches(modules.front());
    case Place::kLast:
      return matches(modules.back());
    case Place::kAlone:
      return modules.size() == 1 && matches(modules.front());
  }
  return false;
}

bool IsOfType(const Patterns& types, const Model& model) {
  return MatchesAny(types, model.type) || MatchesAny(types, model.text_type);
}

bool HasExperts(const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [](const auto& part) { return MatchesAny(kExperts, part); });
}

/// Counts (?= and (?!, also where a backslash or brackets make them plain characters.
std::size_t CountLookaheads(std::string_view pattern) {
  std::size_t count = 0;
  for (const std::string_view opening : {"(?=", "(?!"}) {
    for (std::size_t at = pattern.find(opening); at != std::string_view::npos;
         at = pattern.find(opening, at + 1)) {
      ++count;
    }
  }
  return count;
}

enum class Orientation { kOutputsFirst, kInputsFirst, kUnknown };

/// Returns the orientation of stacked experts. The hidden size is the number of outputs of
/// `down_proj`, and the number of inputs of the other weights.
Orientation ByHiddenSize(const std::string& parameter, const Shape& shape, const Model& model) {
  const bool first = shape[shape.size() - 2] == model.hidden_size,
             last = shape.back() == model.hidden_size;
  if (first == last) return Orientation::kUnknown;
  return first == (parameter == "down_proj") ? Orientation::kOutputsFirst
                                             : Orientation::kInputsFirst;
}

/// Returns a weight's orientation. Requires: a matrix or a stack of matrices, at least one module.
Orientation OrientationOf(const std::vector<std::string>& modules, const std::string& parameter,
                          bool stacked, const Shape& shape, const Model& model) {
  if (IsOfType(kConv1dModels, model) && MatchesAny(kConv1dNames, modules.back())) {
    return Orientation::kInputsFirst;
  }
  const bool experts = stacked || (shape.size() == 3 && HasExperts(modules));
  if (experts && IsOfType(kTransposedExperts, model)) return Orientation::kInputsFirst;
  if (stacked && IsOfType(kEitherExperts, model)) return ByHiddenSize(parameter, shape, model);
  return Orientation::kOutputsFirst;
}

}  // namespace

struct SelectionRule::Regex {
  std::regex compiled;
};

SelectionRule::SelectionRule(Action action, std::string pattern)
    : action_(action), pattern_(std::move(pattern)) {
  if (pattern_.size() > kMaxPatternBytes) {
    throw InvalidArgument(fmt::format("a pattern must have at most {} bytes, got {}",
                                      kMaxPatternBytes, pattern_.size()));
  }
  if (!pattern_.starts_with(kRegexPrefix)) return;
  if (const std::size_t count = CountLookaheads(pattern_); count > kMaxLookaheads) {
    throw InvalidArgument(fmt::format(
        "a regular expression must have at most {} lookahead, (?= or (?!, got {} in '{}'",
        kMaxLookaheads, count, pattern_));
  }
  try {
    regex_ = std::make_shared<const Regex>(
        Regex{std::regex(pattern_.substr(kRegexPrefix.size()), kRegexFlags)});
  } catch (const std::regex_error&) {  // its text differs between C++ libraries
    throw InvalidArgument(fmt::format(
        "a pattern must be a glob, or 're:' and an ECMAScript regular expression of at most {} "
        "states without back-references, got '{}'",
        _GLIBCXX_REGEX_STATE_LIMIT, pattern_));
  }
}

bool SelectionRule::Matches(const std::string& name) const {
  return regex_ ? std::regex_match(name, regex_->compiled)
                : ::fnmatch(pattern_.c_str(), name.c_str(), 0) == 0;
}

std::string SelectionRule::Text() const {
  return fmt::format("{} '{}'", action_ == Action::kInclude ? "--include" : "--exclude", pattern_);
}

std::string OutputHead(std::string_view model_type) {
  for (const auto& [models, head] : kOutputHeads) {
    if (MatchesAny(models, std::string(model_type))) return head;
  }
  return "lm_head";
}

bool IsStackedExperts(std::string_view name) {
  const std::vector<std::string> parts = Components(name);
  return parts.size() > 1 && MatchesAny(kExperts, parts[parts.size() - 2]) &&
         MatchesAny(kExpertWeights, parts.back());
}

bool IsExpert(std::string_view name) {
  std::vector<std::string> modules = Components(name);
  modules.pop_back();
  return HasExperts(modules);
}

bool IsEmbedding(std::string_view name, const std::string& model_type) {
  return DecideByDefault(name, {1, 1}, {.type = model_type}).reason == kEmbedding;
}

Decision DecideByDefault(std::string_view name, const Shape& shape, const Model& model,
                         const Holder& holder) {
  if (shape.size() < 2) return {false, "vector"};
  std::vector<std::string> modules = Components(name);
  const std::string parameter = modules.back();
  modules.pop_back();
  const bool stacked = IsStackedExperts(name);
  if (!stacked && !MatchesAny(kWeights, parameter)) return {false, "not named like a weight"};
  if (!modules.empty()) {
    for (const LeftModule& left : kLeft) {
      if (Stands(left, modules)) return {false, left.what};
    }
    if (IsOfType(kUnnamedEmbeddingModels, model) && MatchesAny(kUnnamedEmbeddings, modules.back()))
      return {false, kEmbedding};
  }
  if (shape.size() > 3 || (shape.size() == 3 && !HasExperts(modules))) {
    return {false, fmt::format("convolution, by its {} dimensions", shape.size())};
  }
  const Orientation orientation = modules.empty()
                                      ? Orientation::kOutputsFirst
                                      : OrientationOf(modules, parameter, stacked, shape, model);
  if (parameter == kFlaxWeight) return {false, "stored as [inputs, outputs] by Flax", true};
  if (!holder.any_parameter && !stacked && (parameter != kWeight || modules.empty())) {
    return {false, "not named '*.weight', as this convention needs it", true};
  }
  if (orientation != Orientation::kOutputsFirst && !holder.transposed) {
    const bool known = orientation == Orientation::kInputsFirst;
    return {false,
            fmt::format("{} as [inputs, outputs] by {}", known ? "stored" : "perhaps stored",
                        model.type.empty() ? model.text_type : model.type),
            true};
  }
  return {true, stacked ? "stacked experts" : "linear layer"};
}

Decision Decide(const std::vector<SelectionRule>& rules, const std::string& name,
                std::optional<DType> dtype, const Shape& shape, const Model& model,
                const Holder& holder) {
  if (!dtype) return {false, "not F32, F16 or BF16"};
  for (auto rule = rules.rbegin(); rule != rules.rend(); ++rule) {
    if (rule->Matches(name)) {
      return {rule->action() == SelectionRule::Action::kInclude, rule->Text()};
    }
  }
  return DecideByDefault(name, shape, model, holder);
}

}  // namespace narrowfloat::config
