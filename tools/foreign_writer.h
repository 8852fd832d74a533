// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "narrowfloat/io/write_convention.h"
#include "tools/companions.h"
#include "tools/job.h"

namespace narrowfloat::tools {

/// Writes quantized weights in another convention. All weights of a model have one format, which
/// its configuration names once, but in conventions that mix them.
class ForeignWriter {
 public:
  /// Errors: InvalidArgument if the convention is not known; Unsupported if it is not written.
  ForeignWriter(std::string verb, const std::string& convention);

  const io::ConventionRow& convention() const { return *convention_; }

  /// Notes the format of a weight. Errors: Unsupported if the convention has none for it, or if it
  /// is another than that of the weights before and the convention does not mix them.
  void Add(const std::string& name, const io::ForeignWeight& form);

  /// Announces the tensors of a weight. Requires: Add was called for a weight of its kind.
  void Plan(const std::string& name, const io::ForeignWeight& form,
            io::FileContents& contents) const;

  /// Writes them.
  void Write(const std::string& name, const io::CanonicalWeight& weight,
             io::SafetensorsWriter& writer) const;

  /// The configuration of the result. Modules of the matrices that `takes` refuses are named as not
  /// quantized.
  Companions Configuration(const io::Checkpoint& in, const TensorRewriter& rewriter) const;

  /// Whether a weight was added.
  bool written() const { return !formats_.empty(); }

  /// The formats' names: "FP8_BLOCK".
  std::string FormatName() const;

 private:
  const io::WrittenFormat& FormatOf(const std::string& name, const io::ForeignWeight& form) const;

  std::string verb_;
  const io::ConventionRow* convention_;
  std::vector<const io::WrittenFormat*> formats_;  // in the order of the weights
};

}  // namespace narrowfloat::tools
