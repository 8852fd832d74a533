// SPDX-License-Identifier: Apache-2.0
#include "tools/input_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::tools {

void InputFiles::Add(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0)
    files_.emplace(std::pair(status.st_dev, status.st_ino), file);
}

void InputFiles::CheckSpared(const std::string& replacer,
                             const std::filesystem::path& target) const {
  struct stat status {};
  if (::stat(target.c_str(), &status) != 0) return;
  const auto found = files_.find({status.st_dev, status.st_ino});
  if (found == files_.end()) return;
  throw InvalidArgument(fmt::format("{} must not replace a file of IN, got {}, which is {}",
                                    replacer, target.string(), found->second.string()));
}

}  // namespace narrowfloat::tools
