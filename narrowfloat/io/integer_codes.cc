// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/integer_codes.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_map>

#include "narrowfloat/io/tensor_name.h"

namespace narrowfloat::io {
namespace {

/// Ends of the names of codes: `qweight` of AWQ and GPTQ, `blocks` of gpt-oss, `codes` of AQLM,
/// `W_q` of HQQ, `_data` of Quanto. The longer ones are first.
constexpr std::string_view kCodeWords[] = {"qweight", "weight", "packed", "blocks",
                                           "codes",   "_data",  "W_q"};

/// Words in the names of scales, the clearest first: `absmax` and `SCB` of bitsandbytes, `qzeros`
/// of AWQ and GPTQ.
constexpr std::string_view kScaleWords[] = {"scale", "absmax", "SCB", "qzeros"};

bool IsCodeMatrix(const TensorLocation& location) {
  return location.tensor->IsPlain() && location.tensor->shape().size() >= 2 &&
         MayBeIntegerCodes(location.tensor->entries.front().dtype);
}

/// The integer matrices of a checkpoint, by the possible beginnings of their scales' names.
class CodeNames {
 public:
  void Add(const TensorEntry& codes) {
    names_.emplace(codes.name, &codes);
    for (const std::string_view word : kCodeWords) {
      if (!codes.name.ends_with(word)) continue;
      stems_.emplace(std::string_view(codes.name).substr(0, codes.name.size() - word.size()),
                     &codes);
      return;
    }
  }

  /// Returns the codes whose scale the tensor `name` may be, if its name contains `word`, one of
  /// kScaleWords. Returns null if no codes match.
  const TensorEntry* CodesOf(std::string_view name, std::string_view word) const {
    if (name.find(word) == std::string_view::npos) return nullptr;
    for (std::size_t end = name.find_first_of("._"); end != std::string_view::npos;
         end = name.find_first_of("._", end + 1)) {
      const std::string_view rest = name.substr(end + 1);
      if (rest.find(word) == std::string_view::npos) return nullptr;
      if (const auto at = names_.find(name.substr(0, end)); at != names_.end()) return at->second;
      if (rest.find('.') != std::string_view::npos) continue;  // another module's
      const auto at = stems_.find(name.substr(0, end + 1));
      if (at != stems_.end() && at->second->name != name) return at->second;
    }
    return nullptr;
  }

 private:
  std::unordered_map<std::string_view, const TensorEntry*> names_;
  std::unordered_map<std::string_view, const TensorEntry*> stems_;  // names without kCodeWords
};

}  // namespace

bool MayBeIntegerCodes(FileDType dtype) {
  using enum FileDType;
  constexpr std::array kTypes = {kU8, kI8, kI16, kU16, kI32, kU32};
  return std::ranges::find(kTypes, dtype) != kTypes.end();
}

std::optional<IntegerCodes> FindScaledIntegers(const Checkpoint& checkpoint) {
  CodeNames names;
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (IsCodeMatrix(location)) names.Add(location.tensor->entries.front());
  }
  for (const std::string_view word : kScaleWords) {
    for (const TensorLocation& location : checkpoint.tensors()) {
      const TensorEntry& scale = location.tensor->entries.front();
      if (const TensorEntry* codes = names.CodesOf(scale.name, word)) return {{codes, &scale}};
    }
  }
  return std::nullopt;
}

}  // namespace narrowfloat::io
