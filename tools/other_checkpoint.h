// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace narrowfloat::tools {

/// Files beside a job's result by which readers would take the folder for another checkpoint.
struct OtherFiles {
  std::vector<std::string> replaced;   // names that only parts of a checkpoint have
  std::optional<std::string> unknown;  // a safetensors file that may be anything
};

/// Lists these files: indices, the files that these name, files with names of a model
/// (`model.safetensors`, `NAME-00001-of-00002.safetensors`), and JSON files that say how tensors
/// are quantized. Sorted, indices last: if their removal is interrupted, the index still names the
/// rest. Without `index`, the name of the result's index, any other safetensors file is unknown,
/// because readers could not tell it from the result. Leaves out hidden files, subfolders and
/// `targets`, the files that the job writes. Errors: InvalidArgument if a JSON file is damaged;
/// IoError.
OtherFiles FindOtherFiles(const std::filesystem::path& folder,
                          const std::set<std::filesystem::path>& targets,
                          const std::optional<std::string>& index);

}  // namespace narrowfloat::tools
