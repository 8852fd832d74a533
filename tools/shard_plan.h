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
  std::string job;  // hash of all that decides the file's bytes

  /// Returns whether the result has this file. A shard that held only scales of weights in other
  /// shards, for example, has no file in it.
  bool IsWritten() const { return !contents.tensors.empty(); }
};

/// Plans every file, so that errors are found before anything is written.
/// Errors: InvalidArgument, also if two files would hold a tensor of the same name.
std::vector<ShardPlan> PlanShards(const io::Checkpoint& in, const std::filesystem::path& out,
                                  const TensorRewriter& rewriter);

/// Returns the part of each shard, counted from 1: the largest shard goes first, to the part with
/// the fewest bytes. Depends on the input and the number of parts alone.
std::vector<std::size_t> AssignParts(const io::Checkpoint& in, std::size_t parts);

/// Returns whether an earlier run finished this very file: its record has the job's hash and the
/// file has the planned header. Requires: plan.IsWritten().
bool IsFinished(const ShardPlan& plan);

/// Removes the record of a file, before the file is replaced.
void RemoveRecord(const std::filesystem::path& file);
/// Writes the record of a finished file.
void WriteRecord(const ShardPlan& plan);

/// Returns the text that a job writes into the mark of its folder: the same for all parts of one
/// job, another for a job with other input, options or version.
std::string MarkText(const std::vector<ShardPlan>& plans);

/// Returns whether the folder has a mark with another text. A mark that cannot be read counts as
/// another.
bool HasMarkOfAnother(const std::filesystem::path& folder, const std::string& text);

/// Refuses a folder with the mark of another job than the one with this `text`: the files of the
/// two would mix. Errors: InvalidArgument.
void CheckMark(const std::filesystem::path& folder, const std::string& text,
               const std::string& verb);

}  // namespace narrowfloat::tools
