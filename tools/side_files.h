// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace narrowfloat::tools {

/// Copies what else a model's folder holds, each file atomically: configuration, tokenizer,
/// documents. Left out are safetensors files and their indices, which the job writes, hidden files,
/// and files too large for anything but weights in another form.
void CopySideFiles(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace narrowfloat::tools
