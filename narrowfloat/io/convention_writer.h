// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "narrowfloat/io/safetensors_file.h"
#include "narrowfloat/io/write_convention.h"

namespace narrowfloat::io {

/// Writes quantized weights in another convention. All weights of a model have one format, because
/// its configuration names one; in conventions that mix formats, each weight has its own format.
class ConventionWriter {
 public:
  /// Finds the convention. `operation` begins messages. Errors: InvalidArgument if the convention
  /// is unknown; Unsupported if it is not written.
  ConventionWriter(std::string operation, const std::string& convention);

  const ConventionRow& convention() const { return *convention_; }

  /// Returns the format of a weight, preferably one that fits all added weights. Errors:
  /// Unsupported if the convention has no format for it, if the weight is empty, if it does not
  /// have two or three dimensions, or if a row ends within a block: no owner reads others.
  const WrittenFormat& FormatOf(const std::string& name, const ForeignWeight& form) const;

  /// Records the format of a weight. Errors: as FormatOf; Unsupported if no format fits this weight
  /// and the earlier ones, and the convention does not mix formats.
  void Add(const std::string& name, const ForeignWeight& form);

  /// Rejects a plain tensor that readers of the result would reject or treat as a part of a weight.
  /// Errors: as io::CheckCopy.
  void CheckCopy(const TensorEntry& entry) const;

  /// Returns the tensors of a weight. Errors: as FormatOf and PlanWritten.
  std::vector<TensorEntry> Entries(const std::string& name, const ForeignWeight& form) const;

  /// Adds the tensors of a weight to `contents`. Requires: Add was called for such a weight.
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

  /// Returns notes about added weights that readers may misread, one text for each kind of error.
  /// Each names the first weight and counts the others.
  std::vector<std::string> Notes() const;

 private:
  /// The weights of one note.
  struct Noted {
    std::string first;  // as the note shows it
    std::size_t count = 0;

    void Add(const std::string& weight);
    std::string More() const;  // " and 2 more", or an empty text
  };

  /// Rejects blocks along rows if they do not divide a row. compressed-tensors and vLLM raise,
  /// gpt-oss has a dimension for the blocks, and transformers divides a row evenly by the number of
  /// its `fp8` scales. Errors: Unsupported.
  void CheckRowBlocks(const std::string& name, const ForeignWeight& form) const;

  std::string operation_;
  const ConventionRow* convention_;
  std::vector<const WrittenFormat*> formats_;  // formats of the weights; one unless it mixes them
  std::vector<const WrittenFormat*> common_;   // formats that fit all weights; empty if it mixes
  Noted unscaled_;                             // weights without an input scale
  Noted spread_;  // weights whose scales readers distribute over blocks of another size
};

}  // namespace narrowfloat::io
