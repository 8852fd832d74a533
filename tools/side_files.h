// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "tools/companions.h"

namespace narrowfloat::tools {

/// A file of the input's folder that is not in the output, and the reason.
struct LeftOut {
  std::string name;  // relative to the folder; a folder's name ends in '/'
  std::string reason;
};

/// Treatment of the files of a model's folder that the job does not rewrite.
struct SideFiles {
  std::vector<std::filesystem::path> copied;  // relative to the folder
  Companions written;                         // files of the folder itself with another text
  std::vector<LeftOut> left_out;
};

/// Plans the treatment of these files. Copies configuration, tokenizer and documents. Does not copy
/// hidden files, files so large that they can only be weights in another form, safetensors files of
/// other models, symbolic links to folders, and files that are not regular. Skips `out`, which may
/// be in the input's folder. Errors: IoError.
SideFiles PlanSideFiles(const io::Checkpoint& in, const std::filesystem::path& out,
                        const Companions& companions);

/// Copies or writes the planned files, each atomically. Errors: IoError.
void CopySideFiles(const SideFiles& files, const std::filesystem::path& from,
                   const std::filesystem::path& to);

}  // namespace narrowfloat::tools
