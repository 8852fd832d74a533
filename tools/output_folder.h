// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace narrowfloat::tools {

/// Creates a folder. The destructor removes it if it contains nothing but the mark of this job.
class OutputFolder {
 public:
  /// Creates the folder. `mark` is the text of this job's mark. Errors: IoError.
  OutputFolder(const std::filesystem::path& path, std::string mark);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

 private:
  void RemoveIfUnused() const;

  std::filesystem::path path_;
  std::string mark_;
  bool created_ = false;
};

}  // namespace narrowfloat::tools
