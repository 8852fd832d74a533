// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/conventions/unscaled_fp8.h"

#include <fmt/format.h>

#include <unordered_map>
#include <vector>

#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

bool IsUnscaledCode(const TensorLocation& location) {
  return location.tensor->IsPlain() && IsFp8(location.tensor->entries.front().dtype);
}

bool SaysScale(std::string_view text) {
  return text.find("scale") != std::string_view::npos;
}

/// The FP8 tensors of a checkpoint, by the possible prefixes of their scales' names.
class CodeNames {
 public:
  void Add(const std::string& name) {
    stems_.emplace(StemOf(name), &name);
    modules_.emplace(ModuleOf(name), &name);
  }

  /// Returns the name of the codes for which the tensor `name` may be a scale; null if none.
  const std::string* CodesOf(std::string_view name) const {
    const std::string_view module = ModuleOf(name);
    const std::string_view parameter = ParameterOf(name);
    if (SaysScale(parameter)) {
      if (const auto found = modules_.find(module); found != modules_.end()) return found->second;
    }
    if (parameter != "bias" && !module.empty()) {  // a parameter beside a weight
      if (const auto found = stems_.find(module); found != stems_.end()) return found->second;
    }
    if (!SaysScale(name)) return nullptr;
    for (std::size_t end = name.find_first_of("._"); end != std::string_view::npos;
         end = name.find_first_of("._", end + 1)) {
      const auto found = stems_.find(name.substr(0, end));
      if (found != stems_.end() && SaysScale(name.substr(end))) return found->second;
    }
    return nullptr;
  }

 private:
  std::unordered_map<std::string_view, const std::string*> stems_;    // names without kPlainWeight
  std::unordered_map<std::string_view, const std::string*> modules_;  // one tensor of each module
};

std::vector<WeightDescription> DescribeAll(const Checkpoint& checkpoint) {
  if (const auto pair = FindPossibleScale(checkpoint)) {
    throw InvalidArgument(fmt::format("read: '{}' must have no scale to be '{}', '{}' may be one",
                                      pair->weight, kUnscaledFp8Name, pair->scale));
  }
  std::vector<WeightDescription> weights;
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (!IsUnscaledCode(location)) continue;
    const TensorEntry& entry = location.tensor->entries.front();
    weights.push_back(
        {.plain = entry.name, .codes = entry.name, .scale = "", .code_types = {entry.dtype}});
  }
  return weights;
}

}  // namespace

std::optional<PossibleScale> FindPossibleScale(const Checkpoint& checkpoint) {
  CodeNames names;
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (IsUnscaledCode(location)) names.Add(location.tensor->name);
  }
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (IsUnscaledCode(location)) continue;
    const std::string& name = location.tensor->name;
    if (const std::string* codes = names.CodesOf(name)) return PossibleScale{*codes, name};
  }
  return std::nullopt;
}

/// Describes a model that was cast to FP8: each code is a value, also in biases and
/// norms.
constinit const ConventionRow kUnscaledFp8{.name = kUnscaledFp8Name,
                                           .other_names = {},
                                           .weights = {},
                                           .accessories = {},
                                           .describe = &DescribeAll};

}  // namespace narrowfloat::io
