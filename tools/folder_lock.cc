// SPDX-License-Identifier: Apache-2.0
#include "tools/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "tools/interrupt.h"

namespace narrowfloat::tools {

FolderLock::FolderLock(const std::filesystem::path& folder)
    : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  // Does not block in the call, because the call would continue after a signal.
  while (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
    CheckInterrupt();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace narrowfloat::tools
