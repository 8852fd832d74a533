// SPDX-License-Identifier: Apache-2.0
#include "tools/output_folder.h"

#include <fmt/format.h>

#include <exception>
#include <system_error>
#include <utility>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/tensor/error.h"
#include "tools/folder_lock.h"
#include "tools/shard_plan.h"

namespace narrowfloat::tools {

namespace fs = std::filesystem;

OutputFolder::OutputFolder(const fs::path& path, std::string mark)
    : path_(path), mark_(std::move(mark)) {
  std::error_code error;
  created_ = fs::create_directories(path_, error);
  if (error) {
    throw IoError(fmt::format("write: {}, {}", path_.string(), error.message()));
  }
}

OutputFolder::~OutputFolder() {
  if (!created_) return;
  try {
    RemoveIfUnused();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): keeps the folder
  }
}

/// Removes the folder if it is unused. Keeps a mark beside another file: a part may be writing it.
void OutputFolder::RemoveIfUnused() const {
  const FolderLock lock(path_);
  std::error_code ignored;
  int files = 0;
  for (fs::directory_iterator at(path_, ignored); at != fs::directory_iterator();
       at.increment(ignored)) {
    ++files;
  }
  const bool has_mark = files == 1 && fs::exists(io::UnfinishedMark(path_), ignored);
  if (has_mark && !HasMarkOfAnother(path_, mark_)) {
    fs::remove(io::UnfinishedMark(path_), ignored);
  }
  fs::remove(path_, ignored);  // fails for a folder that is not empty
}

}  // namespace narrowfloat::tools
