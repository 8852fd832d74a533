// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "tools/companions.h"

namespace narrowfloat::tools {

/// A file of the input's folder that the output does not get, and why.
struct LeftOut {
  std::string name;  // relative to the folder; of a folder with '/' at its end
  std::string reason;
};

/// Treatment of the files of a model's folder that the job does not rewrite.
struct SideFiles {
  std::vector<std::filesystem::path> copied;  // relative to the folder
  Companions written;                         // of the folder itself, with another text
  std::vector<LeftOut> left_out;
};

/// Plans what happens to these files. Copies configuration, tokenizer and documents. Leaves out
/// hidden files, files so large that they can only be weights in another form, safetensors files of
/// other models, symbolic links to folders, and files that are not regular. Skips `out`, which may
/// lie in the input's folder. Errors: IoError.
SideFiles PlanSideFiles(const io::Checkpoint& in, const std::filesystem::path& out,
                        const Companions& companions);

/// Copies or writes them, each atomically. Errors: IoError.
void CopySideFiles(const SideFiles& files, const std::filesystem::path& from,
                   const std::filesystem::path& to);

}  // namespace narrowfloat::tools
