// SPDX-License-Identifier: Apache-2.0
#include "tools/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "narrowfloat/io/companion.h"
#include "tools/interrupt.h"
#include "tools/standard_error.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

/// Returns the fields of config.json that determine the orientation of matrices.
config::Model ModelOf(const nlohmann::json& config) {
  config::Model model{
      .type = io::TextAt(config, {"model_type"}).value_or(""),
      .text_type = io::TextAt(config, {io::kTextModelKey, "model_type"}).value_or("")};
  for (const nlohmann::json& size : {io::ValueAt(config, {io::kTextModelKey, "hidden_size"}),
                                     io::ValueAt(config, {"hidden_size"})}) {
    if (model.hidden_size == 0 && size.is_number_integer()) {
      model.hidden_size = size.get<std::int64_t>();
    }
  }
  return model;
}

}  // namespace

Choice::Choice(const io::Checkpoint& in, std::vector<config::SelectionRule> rules,
               const config::Holder& holder)
    : in_(in), rules_(std::move(rules)) {
  const config::Model model = ModelOf(io::ReadCompanion(in, io::kConfigFile));
  for (const io::TensorLocation& location : in.tensors()) {
    CheckInterrupt();
    const io::StoredTensor& tensor = *location.tensor;
    config::Decision decision =
        config::Decide(rules_, tensor.name, io::WideFloat(tensor.entries.front().dtype),
                       tensor.shape(), model, holder);
    if (holder.transposed && decision.selected && tensor.shape().size() != 3) {
      decision = {false, "no stacked experts, which alone this convention holds"};
    }
    decisions_.emplace(tensor.name, std::move(decision));
  }
}

std::string Choice::CacheKey() const {
  std::string text;
  for (const config::SelectionRule& rule : rules_) text.append("\n").append(rule.Text());
  return text;
}

void Choice::Warn() const {
  for (const config::SelectionRule& rule : rules_) {
    const bool matches = std::ranges::any_of(in_.tensors(), [&](const auto& location) {
      CheckInterrupt();
      return rule.Matches(location.tensor->name);
    });
    if (!matches) {
      PrintToStderr("quantize: no tensor matches '{}'\n", Escaped(rule.pattern()));
    }
  }
  for (const io::TensorLocation& location : in_.tensors()) {
    const config::Decision& decision = Of(*location.tensor);
    if (!decision.left_by_layout) continue;
    PrintToStderr("quantize: left as it is: {} ({})\n", Escaped(location.tensor->name),
                  Escaped(decision.reason));
  }
}

Result Choice::List() const {
  std::vector<std::vector<std::string>> rows = {{"name", "format", "shape", "result", "rule"}};
  Json tensors = Json::array();
  std::size_t quantized = 0;
  for (const io::TensorLocation& location : in_.tensors()) {
    const io::StoredTensor& tensor = *location.tensor;
    const config::Decision& decision = Of(tensor);
    quantized += decision.selected ? 1u : 0u;
    rows.push_back({Escaped(tensor.name), io::FormatText(tensor), ShapeText(tensor.shape()),
                    decision.selected ? "quantized" : "copied", Escaped(decision.reason)});
    tensors.push_back({{"name", tensor.name},
                       {"format", io::FormatText(tensor)},
                       {"shape", tensor.shape()},
                       {"quantized", decision.selected},
                       {"rule", decision.reason}});
  }
  const std::size_t copied = in_.tensors().size() - quantized;
  return {fmt::format("{}\n{} would be quantized, {} copied\n", TableText(rows, {}),
                      CountText(quantized, "tensor"), copied),
          {{"tensors", tensors}, {"tensors_quantized", quantized}, {"tensors_copied", copied}}};
}

}  // namespace narrowfloat::tools
