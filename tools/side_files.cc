// SPDX-License-Identifier: Apache-2.0
#include "tools/side_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>

#include "narrowfloat/io/file.h"
#include "narrowfloat/io/shard_index.h"
#include "narrowfloat/tensor/error.h"
#include "tools/interrupt.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;  // twice the largest tokenizers

/// Returns whether a file is one of the files that the job itself writes.
bool IsOfCheckpoint(const io::Checkpoint& in, const fs::path& relative) {
  const std::string name = relative.string();
  if (in.index() && in.index()->first == name) return true;
  return std::ranges::any_of(in.shards(),
                             [&](const io::Shard& shard) { return shard.name == name; });
}

/// Returns why a file is not copied; an empty text if it is copied.
std::string ReasonToLeaveOut(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  if (name.starts_with('.')) return "hidden";
  if (!entry.is_regular_file()) return "not a regular file";
  if (name.ends_with(io::kFileSuffix) || name.ends_with(io::kIndexSuffix)) {
    return "not part of the checkpoint that is read";
  }
  if (entry.file_size() > kMaxBytes) {
    return fmt::format("larger than {}", BytesText(static_cast<double>(kMaxBytes)));
  }
  return "";
}

}  // namespace

SideFiles PlanSideFiles(const io::Checkpoint& in, const fs::path& out,
                        const Companions& companions) {
  SideFiles files;
  std::ranges::copy_if(companions, std::inserter(files.written, files.written.end()),
                       [](const auto& file) { return file.second.has_value(); });
  const fs::path& from = *in.folder();
  fs::path last = from;  // the folder that cannot be read, in case of an error without a path
  try {
    for (auto at = fs::recursive_directory_iterator(from); at != fs::end(at); ++at) {
      CheckInterrupt();
      last = at->path();
      const fs::path relative = at->path().lexically_relative(from);
      std::error_code ignored;
      if (at->is_directory()) {
        const bool hidden = relative.filename().string().starts_with('.');
        const bool is_out = fs::equivalent(at->path(), out, ignored);
        if (hidden || is_out) at.disable_recursion_pending();
        const bool is_link = at->is_symlink();  // the iterator does not follow links
        if (!is_out && (hidden || is_link)) {
          files.left_out.push_back(
              {relative.string() + "/", hidden ? "hidden" : "a symbolic link to a folder"});
        }
      } else if (const auto file = companions.find(relative.string()); file != companions.end()) {
        if (!file->second) {
          files.left_out.push_back({relative.string(), "describes the tensors that were read"});
        }
      } else if (!IsOfCheckpoint(in, relative)) {
        const std::string reason = ReasonToLeaveOut(*at);
        if (reason.empty()) {
          // Throws for a file that cannot be read, before anything is written.
          [[maybe_unused]] const io::InputFile readable(at->path());
          files.copied.push_back(relative);
        } else {
          files.left_out.push_back({relative.string(), reason});
        }
      }
    }
  } catch (const fs::filesystem_error& error) {
    io::ThrowIo("read", last, error.code().value());
  }
  std::ranges::sort(files.copied);
  std::ranges::sort(files.left_out, {}, &LeftOut::name);
  return files;
}

void CopySideFiles(const SideFiles& files, const fs::path& from, const fs::path& to) {
  std::set<fs::path> folders;
  try {
    for (const fs::path& file : files.copied) {
      CheckInterrupt();
      const fs::path target = to / file;
      if (folders.insert(target.parent_path()).second) {
        fs::create_directories(target.parent_path());
        io::RemoveLeftovers(target.parent_path());
      }
      io::CopyFileAtomically(from / file, target);
    }
    for (const auto& [name, text] : files.written) io::WriteSmallFile(to / name, *text);
  } catch (const fs::filesystem_error& error) {
    io::ThrowIo("write", error.path1(), error.code().value());
  }
}

}  // namespace narrowfloat::tools
