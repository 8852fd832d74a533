// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace narrowfloat::tools {

/// Files beside a job's result that readers would take for parts of another checkpoint.
struct OtherFiles {
  std::vector<std::string> replaced;   // names that only parts of a checkpoint have
  std::optional<std::string> unknown;  // a safetensors file that may be anything
};

/// Lists these files: indices, the files named in them, files with names of a model
/// (`model.safetensors`, `NAME-00001-of-00002.safetensors`), and JSON files that describe the
/// quantization of tensors. Sorted, indices last: if their removal is interrupted, the index still
/// names the remaining files. Without `index`, the name of the result's index, any other
/// safetensors file is unknown, because readers could not distinguish it from the result. Does not
/// list hidden files, subfolders and `targets`, the files that the job writes. Errors:
/// InvalidArgument if a JSON file is damaged; IoError.
OtherFiles FindOtherFiles(const std::filesystem::path& folder,
                          const std::set<std::filesystem::path>& targets,
                          const std::optional<std::string>& index);

}  // namespace narrowfloat::tools
