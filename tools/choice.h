// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "narrowfloat/config/selection.h"
#include "narrowfloat/io/checkpoint.h"
#include "tools/command.h"

namespace narrowfloat::tools {

/// Which tensors of a float checkpoint are quantized, decided once.
class Choice {
 public:
  /// `holder`: says what the result holds; one of transposed matrices holds stacked experts and
  /// nothing else. Errors: InvalidArgument for a damaged config.json; IoError.
  Choice(const io::Checkpoint& in, std::vector<config::SelectionRule> rules,
         const config::Holder& holder);

  const config::Decision& Of(const io::StoredTensor& tensor) const {
    return decisions_.at(tensor.name);
  }

  /// Returns the rules as text, which decide what the result holds.
  std::string CacheKey() const;

  /// Prints on standard error which rules match no tensor, and which tensors are not quantized
  /// because of their layout or name.
  void Warn() const;

  /// Returns every tensor, its treatment and the rule that decided.
  Result List() const;

 private:
  const io::Checkpoint& in_;
  std::vector<config::SelectionRule> rules_;
  std::unordered_map<std::string, config::Decision> decisions_;
};

}  // namespace narrowfloat::tools
