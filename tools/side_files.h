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

/// Lists them: configuration, tokenizer, documents are copied. Left out are hidden files, files too
/// large for anything but weights in another form, safetensors files that are not of the
/// checkpoint, symbolic links to folders, and what is no regular file. `out` may lie in the input's
/// folder and is not listed. Errors: IoError.
SideFiles PlanSideFiles(const io::Checkpoint& in, const std::filesystem::path& out,
                        const Companions& companions);

/// Copies or writes them, each atomically. Errors: IoError.
void CopySideFiles(const SideFiles& files, const std::filesystem::path& from,
                   const std::filesystem::path& to);

}  // namespace narrowfloat::tools
