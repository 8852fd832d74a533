// SPDX-License-Identifier: Apache-2.0
#include "tools/other_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "narrowfloat/io/file.h"
#include "narrowfloat/io/shard_index.h"
#include "narrowfloat/tensor/error.h"
#include "tools/companions.h"

namespace narrowfloat::tools {
namespace {

namespace fs = std::filesystem;

/// Names that readers try before an index: Hugging Face's and Mistral's.
constexpr std::array<std::string_view, 2> kModelFiles = {"model.safetensors",
                                                         "consolidated.safetensors"};

/// Removes digits from the end of `text`. Returns whether there was one.
bool TakeDigits(std::string_view& text) {
  const std::size_t end = text.find_last_not_of("0123456789") + 1;
  const bool found = end < text.size();
  text = text.substr(0, end);
  return found;
}

bool TakeSuffix(std::string_view& text, std::string_view suffix) {
  const bool found = text.ends_with(suffix);
  if (found) text.remove_suffix(suffix.size());
  return found;
}

/// Returns whether a name has the form of a shard: NAME-00001-of-00002.safetensors.
bool IsShardName(std::string_view name) {
  return TakeSuffix(name, io::kFileSuffix) && TakeDigits(name) && TakeSuffix(name, "-of-") &&
         TakeDigits(name) && TakeSuffix(name, "-");
}

/// Returns the names of the folder's files that no reader treats as hidden.
std::set<std::string> NamesIn(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return names;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename().string();
      if (!name.starts_with('.') && !entry.is_directory(ignored)) names.insert(std::move(name));
    }
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("read: {}, {}", folder.string(), error.code().message()));
  }
  return names;
}

/// Returns the files named in an index; an empty set if it is damaged.
std::set<std::string> FilesOfIndex(const fs::path& index) {
  std::set<std::string> files;
  try {
    const std::string text = io::ReadSmallFile(index, io::kMaxIndexBytes);
    for (auto& [file, tensors] : io::ParseIndex(index.string(), text).tensors) files.insert(file);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a damaged index has no files
  }
  return files;
}

}  // namespace

OtherFiles FindOtherFiles(const fs::path& folder, const std::set<fs::path>& targets,
                          const std::optional<std::string>& index) {
  std::set<std::string> names = NamesIn(folder);
  std::erase_if(names, [&](const std::string& name) { return targets.contains(folder / name); });
  std::set<std::string> parts(kModelFiles.begin(), kModelFiles.end());
  if (index)
    parts.insert(index->substr(0, index->size() - io::kIndexSuffix.size()) +
                 std::string(io::kFileSuffix));
  for (const std::string& name : names) {
    if (name.ends_with(io::kIndexSuffix)) parts.merge(FilesOfIndex(folder / name));
  }
  OtherFiles others;
  for (const std::string& name : names) {
    if (name.ends_with(io::kIndexSuffix) || parts.contains(name) || IsShardName(name) ||
        DescribesQuantization(folder, name)) {
      others.replaced.push_back(name);
    } else if (!index && !others.unknown && name.ends_with(io::kFileSuffix)) {
      others.unknown = name;
    }
  }
  std::stable_partition(others.replaced.begin(), others.replaced.end(),
                        [](const std::string& name) { return !name.ends_with(io::kIndexSuffix); });
  return others;
}

}  // namespace narrowfloat::tools
