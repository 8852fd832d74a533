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
#include "tools/command.h"
#include "tools/progress.h"
#include "tools/side_files.h"

namespace narrowfloat::tools {

/// The work of a job on each tensor. quantize, dequantize, convert and requantize differ in this
/// alone.
class TensorRewriter {
 public:
  virtual ~TensorRewriter() = default;

  /// Returns the verb that begins messages: "quantize".
  virtual std::string Verb() const = 0;

  /// Returns all that decides the output's bytes beside the input and the version.
  virtual std::string CacheKey() const = 0;

  /// Returns whether the tensor is rewritten; others are copied byte for byte.
  virtual bool Rewrites(const io::StoredTensor& tensor) const = 0;

  /// Returns whether the tensor is left out of the result.
  virtual bool Drops(const io::StoredTensor& /*tensor*/) const { return false; }

  /// Adds the tensors that Rewrite will write to `contents`.
  virtual void Plan(const io::StoredTensor& tensor, io::FileContents& contents) const = 0;

  /// Writes these tensors. `input` has the bytes of each of the tensor's entries.
  virtual void Rewrite(const io::StoredTensor& tensor,
                       const std::vector<std::span<const std::byte>>& input,
                       io::SafetensorsWriter& writer) = 0;
};

/// The i-th of N runs that share a job.
struct Part {
  std::size_t number = 1, count = 1;
};

/// Where the result goes.
struct JobOutput {
  std::filesystem::path path;
  Part part{};
  bool overwrite = false;  // whether files that no unfinished job wrote may be replaced
  Companions companions{};
};

/// Parses "i/N" with 1 <= i <= N. Errors: InvalidArgument.
Part ParsePart(const std::string& text);

struct JobResult {
  std::size_t tensors_rewritten = 0, tensors_copied = 0, tensors_dropped = 0;  // in this part
  std::uint64_t bytes_before = 0, bytes_after = 0;                             // of their tensors
  std::uint64_t parameters = 0;
  std::size_t files = 0, files_written = 0, files_skipped = 0;  // of this part
  bool complete = true;              // whether the files of the other parts exist, too
  std::vector<LeftOut> left_out;     // files of IN that OUT does not get
  std::vector<std::string> removed;  // files of OUT that another checkpoint left
  std::uint64_t worked_bytes = 0;
  double seconds = 0;
};

/// Rewrites a checkpoint file by file, one tensor in memory at a time.
/// A file goes to a file, a folder to a folder with the same file names, its index rewritten and
/// its other small files copied; there, until the last file is done, a record beside each finished
/// one lets a later run skip it, and a mark names the job. A part without files writes nothing. At
/// the end `overwrite` removes the files by which readers would take OUT for another checkpoint.
/// Every file appears whole or not at all. Names files that are left out on standard error. Errors:
/// InvalidArgument if `out` is `in`, if a file of `in` would be replaced, if no tensor is
/// rewritten, or, unless `overwrite` is set, if a file exists that this job did not write, or
/// another checkpoint's; Interrupted, saying what was done; IoError.
JobResult RunJob(const io::Checkpoint& in, const JobOutput& out, TensorRewriter& rewriter);

/// Returns the result as text and as JSON. `rewritten` is the command's participle, such as
/// "quantized".
Result JobReport(const JobResult& job, const std::string& rewritten, Json first_keys);

}  // namespace narrowfloat::tools
