// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/io/write_convention.h"
#include "tools/companions.h"
#include "tools/job.h"

namespace narrowfloat::tools {

/// Writes quantized weights in another convention. All weights of a model have one format, which
/// its configuration names once.
class ForeignWriter {
 public:
  /// Errors: InvalidArgument if the convention is not known; Unsupported if it is not written.
  ForeignWriter(std::string verb, const std::string& convention);

  const io::ConventionRow& convention() const { return *convention_; }

  /// Notes the format of a weight. Errors: Unsupported if the convention has none for it, or if it
  /// is another than that of the weights before.
  void Add(const std::string& name, const io::ForeignWeight& form);

  /// Announces the tensors of a weight. Requires: Add was called for a weight of its kind.
  void Plan(const std::string& name, const io::ForeignWeight& form,
            io::FileContents& contents) const;

  /// Writes them from the bytes of `tensor`'s entries.
  void Write(const io::StoredTensor& tensor, const std::vector<std::span<const std::byte>>& input,
             io::SafetensorsWriter& writer) const;

  /// The configuration of the result. Modules of the matrices that `takes` refuses are named as not
  /// quantized.
  Companions Configuration(const io::Checkpoint& in, const TensorRewriter& rewriter) const;

  /// Whether a weight was added.
  bool written() const { return format_ != nullptr; }

  /// The format's name: "FP8_BLOCK".
  std::string FormatName() const { return std::string(format_->name); }

 private:
  std::string verb_;
  const io::ConventionRow* convention_;
  const io::WrittenFormat* format_ = nullptr;
};

}  // namespace narrowfloat::tools
