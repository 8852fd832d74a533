// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "tools/job.h"

namespace narrowfloat::tools {

/// One file of the output.
struct ShardPlan {
  const io::Shard* shard;
  std::filesystem::path out;
  io::FileContents contents;
  std::string job;  // hash of all that determines the file's bytes

  /// Returns whether the result has this file. For example, it has no file for a shard with only
  /// scales of weights in other shards.
  bool IsWritten() const { return !contents.tensors.empty(); }
};

/// Plans every file, so that errors are found before anything is written.
/// Errors: InvalidArgument, also if two files would have a tensor of the same name.
std::vector<ShardPlan> PlanShards(const io::Checkpoint& in, const std::filesystem::path& out,
                                  const TensorRewriter& rewriter);

/// Returns the part of each shard, counted from 1. Assigns the shards, largest first, to the part
/// with the fewest bytes. Depends only on the input and the number of parts.
std::vector<std::size_t> AssignParts(const io::Checkpoint& in, std::size_t parts);

/// Returns whether there is a file with the planned header; it may be of another job. Requires:
/// plan.IsWritten().
bool HasPlannedHeader(const ShardPlan& plan);

/// Returns whether an earlier run of the same job finished this file: its record has the job's hash
/// and the file has the planned header. Requires: plan.IsWritten().
bool IsFinished(const ShardPlan& plan);

/// Removes the record of a file, before the file is replaced.
void RemoveRecord(const std::filesystem::path& file);
/// Writes the record of a finished file.
void WriteRecord(const ShardPlan& plan);

/// Returns the text of a job's mark in its folder: the same for all parts of one job, different for
/// a job with another input, options or version.
std::string MarkText(const std::vector<ShardPlan>& plans);

/// Returns whether the folder has a mark with another text, or a mark that cannot be
/// read.
bool HasMarkOfAnother(const std::filesystem::path& folder, const std::string& text);

/// Rejects a folder with the mark of a job other than the job with this `text`: the files of both
/// would mix. Errors: InvalidArgument.
void CheckMark(const std::filesystem::path& folder, const std::string& text,
               const std::string& verb);

}  // namespace narrowfloat::tools
