// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "narrowfloat/io/file.h"

namespace narrowfloat::tools {

/// Locks a folder until its destruction, so that only one part of a job at a time accesses the
/// folder's mark. Has no effect on a file system without locks of folders. Waits for another lock;
/// a signal ends the wait. Errors: Interrupted.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);

 private:
  io::FileDescriptor fd_;  // closing it unlocks
};

}  // namespace narrowfloat::tools
