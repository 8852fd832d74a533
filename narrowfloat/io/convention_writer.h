// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "narrowfloat/io/safetensors_file.h"
#include "narrowfloat/io/write_convention.h"

namespace narrowfloat::io {

/// Writes quantized weights in another convention. All weights of a model get one format, because
/// its configuration names one; in conventions that mix formats, each weight gets its own.
class ConventionWriter {
 public:
  /// `operation` begins messages. Errors: InvalidArgument if the convention is not known;
  /// Unsupported if it is not written.
  ConventionWriter(std::string operation, const std::string& convention);

  const ConventionRow& convention() const { return *convention_; }

  /// Returns the format of a weight: one that holds all weights, if there is one. Errors:
  /// Unsupported if the convention has none for it; also if the weight is empty, or has another
  /// number of dimensions than two or three, which no owner reads.
  const WrittenFormat& FormatOf(const std::string& name, const ForeignWeight& form) const;

  /// Notes the format of a weight. Errors: as FormatOf; Unsupported if it is another than that of
  /// the weights before and the convention does not mix them.
  void Add(const std::string& name, const ForeignWeight& form);

  /// Refuses a tensor beside the weights that readers of the result would refuse or take for a part
  /// of a weight. Errors: as io::CheckCopy.
  void CheckCopy(const TensorEntry& entry) const;

  /// Returns the tensors of a weight. Errors: as FormatOf and PlanWritten.
  std::vector<TensorEntry> Entries(const std::string& name, const ForeignWeight& form) const;

  /// Adds the tensors of a weight to `contents`. Requires: Add was called for a weight of its kind.
  void Plan(const std::string& name, const ForeignWeight& form, FileContents& contents) const;

  /// Writes the tensors of a weight.
  void Write(const std::string& name, const CanonicalWeight& weight,
             SafetensorsWriter& writer) const;

  /// Returns whether a weight was added.
  bool written() const { return !formats_.empty(); }

  /// Returns the formats' names: "FP8_BLOCK".
  std::string FormatName() const;

  /// Returns the formats of the weights that were added.
  const std::vector<const WrittenFormat*>& formats() const { return formats_; }

  /// Returns a text that names a weight without the scale of the inputs that readers of its format
  /// need, and counts the others; an empty text if none lacks it.
  std::string MissingInputScales() const;

 private:
  std::string operation_;
  const ConventionRow* convention_;
  std::vector<const WrittenFormat*> formats_;  // of the weights; one, or several if it mixes them
  std::vector<const WrittenFormat*> common_;   // that hold all weights so far; none if it mixes
  std::string first_unscaled_;                 // the first weight without a scale of its inputs
  std::size_t unscaled_ = 0;                   // the number of these weights
};

}  // namespace narrowfloat::io
