// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "narrowfloat/io/convention.h"
#include "narrowfloat/io/safetensors_file.h"
#include "narrowfloat/io/shard_index.h"

namespace narrowfloat::io {

/// One file of a checkpoint, with its tensors by name.
struct Shard {
  std::string name;  // of the file, without its folder
  SafetensorsFile file;
  std::vector<StoredTensor> tensors{};
  std::size_t number = 0;  // index in Checkpoint::shards()
};

/// A tensor and the file that contains it.
struct TensorLocation {
  const Shard* shard = nullptr;
  const StoredTensor* tensor = nullptr;
};

/// Returns the path of the hidden file that marks a folder while a command-line job fills it.
std::filesystem::path UnfinishedMark(const std::filesystem::path& folder);

/// Returns the path of that mark if the folder of a checkpoint has one; `path` is the folder or an
/// index file in it. Files of a marked folder are complete, but some may be old and some missing.
std::optional<std::filesystem::path> FindUnfinishedMark(const std::filesystem::path& path);

/// Action of Checkpoint::Open for a folder with the mark of an unfinished job.
enum class Unfinished : std::uint8_t { kRefuse, kOpen };

/// A model on disk: a file, or a folder with one file or with shards and an index. Opening reads
/// and checks every header; data is read on demand, by any thread.
class Checkpoint {
 public:
  /// Opens `path`: a file, an index file or a folder.
  /// Errors: InvalidArgument if `path` is missing or damaged, if a shard lacks a tensor of the
  /// index, if two shards have the same tensor, or if the folder has the mark of an unfinished job
  /// and `unfinished` is kRefuse; IoError.
  static Checkpoint Open(const std::filesystem::path& path,
                         Unfinished unfinished = Unfinished::kRefuse);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<Shard>& shards() const { return shards_; }

  /// Returns the folder of the checkpoint; nullopt if it was opened as a single file.
  const std::optional<std::filesystem::path>& folder() const { return folder_; }

  /// Returns the index and its file name; nullopt without an index.
  const std::optional<std::pair<std::string, ShardIndex>>& index() const { return index_; }

  /// Returns all tensors, sorted by name.
  const std::vector<TensorLocation>& tensors() const { return tensors_; }

  /// Replaces the list of tensors of every shard. Errors: InvalidArgument if two have the same one.
  void Regroup(std::vector<std::vector<StoredTensor>> by_shard);

  /// Returns the tensor with this name, or null pointers if the checkpoint has none.
  TensorLocation Find(std::string_view name) const;

 private:
  Checkpoint() = default;
  void OpenFolder(const std::filesystem::path& folder);
  void OpenIndex(const std::filesystem::path& path);
  void OpenShard(const std::filesystem::path& path);
  void GroupShards();
  void ListTensors();

  std::filesystem::path path_;
  std::optional<std::filesystem::path> folder_;
  std::vector<Shard> shards_;
  std::optional<std::pair<std::string, ShardIndex>> index_;
  std::vector<TensorLocation> tensors_;  // into shards_, which no longer changes
};

/// Returns the file that contains an entry of a tensor.
const Shard& HomeOf(const TensorLocation& location, std::size_t entry);

/// Fills `out` with a complete entry of a tensor. `buffer` is its index in `entries`; entries of a
/// quantized tensor have the order of its `plan`. Errors: InvalidArgument if the sizes differ;
/// IoError.
void ReadBuffer(const TensorLocation& location, std::size_t buffer, std::span<std::byte> out);

}  // namespace narrowfloat::io
