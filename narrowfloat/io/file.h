// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace narrowfloat::io {

/// Owns a file descriptor; the destructor closes it.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  int Release();

 private:
  int fd_ = -1;
};

/// Identifies one state of a file: differs after the file has changed.
struct FileIdentity {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
};

/// A regular file, read at any offset by any thread. Uses read, not mmap: if another program
/// truncates the file, the result is an error and not a signal.
class InputFile {
 public:
  /// Opens a file. Errors: InvalidArgument if there is no such regular file; IoError.
  explicit InputFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }
  mode_t mode() const { return mode_; }  // permission bits

  /// Fills `out` from `offset` on. Errors: IoError, also if the file ends earlier.
  void Read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  FileIdentity identity_;
  mode_t mode_ = 0;
};

/// Throws the IoError of a failed operation on a file. `error` is an errno.
[[noreturn]] void ThrowIo(const char* verb, const std::filesystem::path& path, int error);

/// Returns the folder of a path's file; "." for a name without a folder.
std::filesystem::path FolderOf(const std::filesystem::path& path);

/// Returns the bytes of a small file. Errors: InvalidArgument if it has more than `max_bytes`, or
/// as InputFile.
std::string ReadSmallFile(const std::filesystem::path& path, std::uint64_t max_bytes);

/// A file that is created completely or not at all: written under a temporary name in the same
/// folder, then renamed. Until Commit, an old file is unchanged; without Commit, the destructor
/// removes the temporary file. The temporary file is locked while it is written: a file without a
/// lock belongs to a process that ended before its destructor ran. Keeps the old file's mode.
class AtomicFile {
 public:
  /// Creates the temporary file. If there is no old file, its mode is `new_mode` less the umask.
  /// Errors: InvalidArgument if the folder does not exist, or if `path` exists and is not a regular
  /// file; IoError if the folder is not writable.
  explicit AtomicFile(const std::filesystem::path& path, mode_t new_mode = 0666);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Writes bytes; may keep a few to write them together with later ones. Starts to transfer them
  /// to the disk before Commit waits for it. Requires: no byte is written twice. Errors: IoError,
  /// which may be of an earlier call.
  void Write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Waits until all written bytes are on the disk. Errors: IoError.
  void FlushToDisk();

  /// Renames the file to `path`; the file is on the disk on return. Errors: IoError. The old file
  /// still exists then, unless only the folder could not be written to the disk.
  void Commit();

  /// Does as Commit if there is no file at `path`; otherwise keeps it and returns false. Replaces
  /// it on a file system without hard links.
  bool CommitNew();

 private:
  /// Unwritten bytes of adjacent calls.
  struct Run {
    std::uint64_t begin = 0;
    std::vector<std::byte> bytes;
  };
  void Flush(Run& run);
  void SyncFolder();
  void WriteThrough(std::uint64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_, temporary_;
  FileDescriptor fd_;
  std::vector<Run> runs_;                // in the order of their begin
  std::uint64_t unsubmitted_bytes_ = 0;  // written since the last request to store them
};

/// Removes the temporary files in `folder` that no running process writes. Keeps a file if its lock
/// cannot be tested, and ignores a folder that cannot be read.
void RemoveLeftovers(const std::filesystem::path& folder);

/// Replaces the file at `path` by `text`, atomically. Errors: as AtomicFile.
void WriteSmallFile(const std::filesystem::path& path, const std::string& text);

/// Writes a small file unless there is one at `path`. In that case, returns false and keeps the
/// existing file. Errors: as AtomicFile.
bool WriteNewFile(const std::filesystem::path& path, const std::string& text);

/// Replaces the file at `to` by a copy of `from`, atomically. A new file gets the mode of `from`.
/// Errors: as InputFile and AtomicFile.
void CopyFileAtomically(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace narrowfloat::io
