// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "tools/byte_buffer.h"
#include "tools/progress.h"
#include "tools/side_files.h"

namespace narrowfloat::tools {

/// The work of a job on each tensor. The commands quantize, dequantize, convert and requantize
/// differ only in this.
class TensorRewriter {
 public:
  virtual ~TensorRewriter() = default;

  /// Returns the verb that begins messages: "quantize".
  virtual std::string Verb() const = 0;

  /// Returns all options that affect the output's bytes, besides the input and the version.
  virtual std::string CacheKey() const = 0;

  /// Returns whether the tensor is rewritten. Other tensors are copied byte for byte.
  virtual bool Rewrites(const io::StoredTensor& tensor) const = 0;

  /// Returns whether a tensor that is rewritten keeps its codes although others are converted.
  virtual bool Leaves(const io::StoredTensor& /*tensor*/) const { return false; }

  /// Returns whether the result does not have the tensor.
  virtual bool Drops(const io::StoredTensor& /*tensor*/) const { return false; }

  /// Adds the tensors that Rewrite will write to `contents`.
  virtual void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const = 0;

  /// Writes the planned tensors. `input` has the bytes of each of the tensor's entries.
  virtual void Rewrite(const io::StoredTensor& tensor,
                       const std::vector<std::span<const std::byte>>& input,
                       io::SafetensorsWriter& writer) = 0;
};

/// One of N runs that share a job: number i of N.
struct Part {
  std::size_t number = 1, count = 1;
};

/// The output of a job.
struct JobOutput {
  std::filesystem::path path;
  Part part{};
  bool overwrite = false;  // whether files of others may be replaced (not of an unfinished job)
  Companions companions{};
};

/// Parses "i/N" with 1 <= i <= N. Errors: InvalidArgument.
Part ParsePart(const std::string& text);

struct JobResult {
  std::size_t tensors_rewritten = 0, tensors_copied = 0;  // in this part, as all counts
  std::size_t tensors_left = 0, tensors_dropped = 0;
  std::uint64_t bytes_before = 0, bytes_after = 0;  // of their tensors
  std::uint64_t parameters = 0;
  std::size_t files = 0, files_written = 0, files_skipped = 0;  // of this part
  bool complete = true;              // whether the files of the other parts exist too
  std::vector<LeftOut> left_out;     // files of IN that OUT does not have
  std::vector<std::string> removed;  // files of another checkpoint, removed from OUT
  std::vector<std::string> notes;    // on the reading of IN, and on readers of the result
  std::uint64_t worked_bytes = 0;
  double seconds = 0;
};

/// Rewrites a checkpoint file by file, one tensor in memory at a time.
/// The output of a file is a file. The output of a folder is a folder with the same file names, a
/// rewritten index, and copies of other small files. Until the last file is done, a mark in the
/// folder names the job, and a record beside each finished file lets a later run skip it. A part
/// without files writes nothing. At the end, `overwrite` removes files that readers would take for
/// parts of another checkpoint. Every file is created completely or not at all. Prints the names of
/// files that are not copied to standard error. Errors: InvalidArgument if `out` is `in`, if a file
/// of `in` would be replaced, if no tensor is rewritten, or, without `overwrite`, if a file exists
/// from another job or checkpoint; Interrupted, with the progress; IoError.
JobResult RunJob(const io::Checkpoint& in, const JobOutput& out, TensorRewriter& rewriter);

}  // namespace narrowfloat::tools
