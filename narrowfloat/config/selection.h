// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/tensor/dtype.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat::config {

/// One --include or --exclude: a pattern for a tensor's full name, either an fnmatch pattern or,
/// after "re:", an ECMAScript regular expression.
class SelectionRule {
 public:
  enum class Action { kInclude, kExclude };

  /// Compiles the pattern. Errors: InvalidArgument for an invalid regular expression, and for one
  /// that is too long or would take too much time or stack.
  SelectionRule(Action action, std::string pattern);

  Action action() const { return action_; }
  const std::string& pattern() const { return pattern_; }
  /// Takes time proportional to the length of the name; with a lookahead, to its square.
  bool Matches(const std::string& name) const;

  /// Returns "--include '*.q_proj.*'".
  std::string Text() const;

 private:
  struct Regex;  // not defined here, because <regex> takes long to compile

  Action action_;
  std::string pattern_;
  std::shared_ptr<const Regex> regex_;  // null for an fnmatch pattern
};

/// Fields of config.json. DecideByDefault derives from them whether matrices are stored as
/// [outputs, inputs] or the reverse.
struct Model {
  std::string type{};            // model_type
  std::string text_type{};       // model_type of text_config
  std::int64_t hidden_size = 0;  // of the language model; 0 if it is not known
};

/// The decision on one tensor, and its reason.
struct Decision {
  bool selected;
  std::string reason;
  bool left_by_layout = false;  // not selected only because of its layout or name
};

/// Tensors that the output format can hold.
struct Holder {
  bool transposed = false;    // matrices stored as [inputs, outputs] too
  bool any_parameter = true;  // a layer's parameters of any name, not only `*.weight`
};

/// Decides on a tensor by default. Selects the weights of linear layers and stacked experts. Does
/// not select norms, biases, embeddings, convolutions, output heads, routers, LoRA, heads for the
/// prediction of further tokens, or vectors. Compares only whole components of the dotted name:
/// `mlp.gate` is a router, `mlp.gate_proj` is not. Some models store matrices as [inputs, outputs],
/// where blocks would extend along outputs. Selects these, and matrices of unknown orientation,
/// only with `holder.transposed`, and Flax's never.
Decision DecideByDefault(std::string_view name, const Shape& shape, const Model& model,
                         const Holder& holder = {});

/// Returns true for the name of a tensor of routed experts, stacked or not.
bool IsExpert(std::string_view name);

/// Returns true for the name of stacked experts without a component `weight`:
/// "mlp.experts.down_proj".
bool IsStackedExperts(std::string_view name);

/// Returns true for the name of an embedding's weight in a model of this `model_type`.
bool IsEmbedding(std::string_view name, const std::string& model_type = "");

/// Returns the name of a language model's output head: "lm_head", or another module by
/// `model_type`. A model with tied embeddings has this module, but its files have no tensor of it.
std::string OutputHead(std::string_view model_type);

/// Decides whether a tensor is quantized: never without a wide float type (`dtype` is nullopt),
/// else by the last rule that matches, or by DecideByDefault if no rule matches.
Decision Decide(const std::vector<SelectionRule>& rules, const std::string& name,
                std::optional<DType> dtype, const Shape& shape, const Model& model,
                const Holder& holder = {});

}  // namespace narrowfloat::config
