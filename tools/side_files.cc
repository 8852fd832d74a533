// SPDX-License-Identifier: Apache-2.0
#include "tools/side_files.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "narrowfloat/io/file.h"
#include "narrowfloat/io/shard_index.h"
#include "narrowfloat/tensor/error.h"
#include "tools/interrupt.h"

namespace narrowfloat::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;  // the largest tokenizers have half

bool IsSideFile(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return entry.is_regular_file() && !name.starts_with('.') && !name.ends_with(io::kFileSuffix) &&
         !name.ends_with(io::kIndexSuffix) && entry.file_size() <= kMaxBytes;
}

}  // namespace

void CopySideFiles(const fs::path& from, const fs::path& to) {
  try {
    for (auto at = fs::recursive_directory_iterator(from); at != fs::end(at); ++at) {
      CheckInterrupt();
      if (at->is_directory()) {
        // The output may lie in the input's folder.
        const bool hidden = at->path().filename().string().starts_with('.');
        if (hidden || fs::equivalent(at->path(), to)) at.disable_recursion_pending();
      } else if (IsSideFile(*at)) {
        const fs::path target = to / at->path().lexically_relative(from);
        fs::create_directories(target.parent_path());
        io::CopyFileAtomically(at->path(), target);
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw IoError(fmt::format("write: {}, {}", to.string(), error.code().message()));
  }
}

}  // namespace narrowfloat::tools
