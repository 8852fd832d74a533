// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "narrowfloat/io/file.h"

namespace narrowfloat::tools {

/// Locks a folder while it lives: the parts of a job decide about its mark one after another. Has
/// no effect on a file system without locks of folders. Waits for another lock; a signal ends the
/// wait. Errors: Interrupted.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  io::FileDescriptor fd_;  // closing it unlocks
};

}  // namespace narrowfloat::tools
