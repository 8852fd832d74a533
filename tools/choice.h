// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "narrowfloat/config/selection.h"
#include "narrowfloat/io/checkpoint.h"
#include "tools/command.h"

namespace narrowfloat::tools {

/// The tensors of a float checkpoint that are quantized, decided once.
class Choice {
 public:
  /// Decides on each tensor. `holder` has the tensors that the result can hold; with transposed
  /// matrices, only stacked experts. Errors: InvalidArgument for a damaged config.json; IoError.
  Choice(const io::Checkpoint& in, std::vector<config::SelectionRule> rules,
         const config::Holder& holder);

  const config::Decision& Of(const io::StoredTensor& tensor) const {
    return decisions_.at(tensor.name);
  }

  /// Returns the rules as text. They determine the tensors of the result.
  std::string CacheKey() const;

  /// Prints to standard error the rules without a matching tensor, and the tensors that are not
  /// quantized because of their layout or name.
  void Warn() const;

  /// Returns every tensor, its treatment and the rule that decided.
  Result List() const;

 private:
  const io::Checkpoint& in_;
  std::vector<config::SelectionRule> rules_;
  std::unordered_map<std::string, config::Decision> decisions_;
};

}  // namespace narrowfloat::tools
