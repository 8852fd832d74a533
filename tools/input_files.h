// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>

namespace narrowfloat::tools {

/// Files that a command reads. Recognizes them by any path: through links and other folders.
class InputFiles {
 public:
  /// Adds a file. Ignores a file that does not exist.
  void Add(const std::filesystem::path& file);

  /// Checks that `target` is not one of the files, so that it may be replaced. `replacer` begins
  /// the message: "quantize: OUT". Errors: InvalidArgument.
  void CheckSpared(const std::string& replacer, const std::filesystem::path& target) const;

 private:
  std::map<std::pair<dev_t, ino_t>, std::filesystem::path> files_;
};

}  // namespace narrowfloat::tools
