// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUsualIndex = "model.safetensors.index.json";

[[noreturn]] void RefuseUnfinished(const fs::path& path, const fs::path& mark) {
  throw InvalidArgument(fmt::format(
      "read: {}, the job that writes this folder must be finished, got its mark {}; run the job "
      "again, or remove the mark to read what the folder holds",
      path.string(), mark.string()));
}

/// Returns the names of a folder's files that end in `suffix`, sorted.
std::vector<std::string> NamesEndingIn(const fs::path& folder, std::string_view suffix) {
  std::vector<std::string> names;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      // A hidden file is not a shard: unfinished files of this library are hidden.
      if (name.ends_with(suffix) && !name.starts_with('.')) names.push_back(std::move(name));
    }
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("read: {}, {}", folder.string(), error.code().message()));
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

fs::path UnfinishedMark(const fs::path& folder) {
  return folder / ".narrowfloat.unfinished";
}

std::optional<fs::path> FindUnfinishedMark(const fs::path& path) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(path, ignored);
  if (!is_folder && !path.string().ends_with(kIndexSuffix)) return std::nullopt;
  fs::path mark = UnfinishedMark(is_folder ? path : FolderOf(path));
  if (!fs::exists(fs::symlink_status(mark, ignored))) return std::nullopt;
  return mark;
}

Checkpoint Checkpoint::Open(const fs::path& path, Unfinished unfinished) {
  const std::optional<fs::path> mark = FindUnfinishedMark(path);
  if (mark && unfinished == Unfinished::kRefuse) RefuseUnfinished(path, *mark);
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    checkpoint.OpenFolder(path);
  } else if (path.string().ends_with(kIndexSuffix)) {
    checkpoint.OpenIndex(path);
  } else {
    checkpoint.OpenShard(path);
  }
  checkpoint.GroupShards();
  checkpoint.ListTensors();
  return checkpoint;
}

void Checkpoint::OpenFolder(const fs::path& folder) {
  const std::vector<std::string> indices = NamesEndingIn(folder, kIndexSuffix);
  const auto usual = std::ranges::find(indices, kUsualIndex);
  if (usual != indices.end() || indices.size() == 1) {
    OpenIndex(folder / (usual != indices.end() ? *usual : indices.front()));
    return;
  }
  const std::vector<std::string> files = NamesEndingIn(folder, kFileSuffix);
  if (!indices.empty() || files.size() != 1) {
    // A job writes the index last.
    if (const auto mark = FindUnfinishedMark(folder)) RefuseUnfinished(folder, *mark);
    throw InvalidArgument(
        fmt::format("read: {}, a folder must have one *{} file or one index, got {} and {}; name "
                    "the file to read",
                    folder.string(), kFileSuffix, files.size(), indices.size()));
  }
  folder_ = folder;
  OpenShard(folder / files.front());
}

void Checkpoint::OpenIndex(const fs::path& path) {
  folder_ = FolderOf(path);
  index_.emplace(path.filename().string(),
                 ParseIndex(IndexSource(path), ReadSmallFile(path, kMaxIndexBytes)));
  for (const auto& [file, tensors] : index_->second.tensors) OpenShard(*folder_ / file);
  for (const Shard& shard : shards_) {
    for (const std::string& tensor : index_->second.tensors.at(shard.name)) {
      if (shard.file.Find(tensor) != nullptr) continue;
      throw InvalidArgument(fmt::format("{}: '{}' must be in {}, which lacks it", IndexSource(path),
                                        tensor, shard.name));
    }
  }
}

void Checkpoint::OpenShard(const fs::path& path) {
  SafetensorsFile file(path);
  shards_.push_back({path.filename().string(), std::move(file)});
}

void Checkpoint::GroupShards() {
  std::vector<FileHeader> files;
  for (const Shard& shard : shards_) {
    files.push_back({SafetensorsSource(shard.file.path()), &shard.file.header()});
  }
  std::vector<std::vector<StoredTensor>> tensors = GroupTensors(files);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].tensors = std::move(tensors[i]);
    shards_[i].number = i;
  }
}

void Checkpoint::ListTensors() {
  for (const Shard& shard : shards_) {
    for (const StoredTensor& tensor : shard.tensors) tensors_.push_back({&shard, &tensor});
  }
  const auto name = [](const TensorLocation& location) -> const std::string& {
    return location.tensor->name;
  };
  std::ranges::sort(tensors_, {}, name);
  const auto repeated = std::ranges::adjacent_find(tensors_, {}, name);
  if (repeated == tensors_.end()) return;
  throw InvalidArgument(fmt::format("read: {}, '{}' must be in one file, it is in both {} and {}",
                                    path_.string(), name(*repeated), repeated->shard->name,
                                    std::next(repeated)->shard->name));
}

void Checkpoint::Regroup(std::vector<std::vector<StoredTensor>> by_shard) {
  tensors_.clear();
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].tensors = std::move(by_shard[i]);
    std::ranges::sort(shards_[i].tensors, {}, &StoredTensor::name);
  }
  ListTensors();
}

TensorLocation Checkpoint::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      tensors_, name, {},
      [](const TensorLocation& l) -> std::string_view { return l.tensor->name; });
  return found != tensors_.end() && found->tensor->name == name ? *found : TensorLocation{};
}

const Shard& HomeOf(const TensorLocation& location, std::size_t entry) {
  const std::vector<std::size_t>& shards = location.tensor->shards;
  if (shards.empty()) return *location.shard;
  return *(location.shard - location.shard->number + shards.at(entry));
}

void ReadBuffer(const TensorLocation& location, std::size_t buffer, std::span<std::byte> out) {
  const TensorEntry& entry = location.tensor->entries.at(buffer);
  if (out.size() != entry.Bytes()) {
    throw InvalidArgument(fmt::format("read: the buffer for '{}' must have {} bytes, got {}",
                                      entry.name, entry.Bytes(), out.size()));
  }
  HomeOf(location, buffer).file.Read(entry, 0, out);
}

}  // namespace narrowfloat::io
