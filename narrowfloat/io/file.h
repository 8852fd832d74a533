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

/// Owns a file descriptor, which its destructor closes.
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

/// Identifies one state of a file: it changes when the file does.
struct FileIdentity {
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
};

/// A regular file, read at any offset by any thread. It is read, never mapped: when somebody cuts
/// it short meanwhile, that is an error and not a signal.
class InputFile {
 public:
  /// Errors: InvalidArgument if there is no such regular file; IoError if it cannot be opened.
  explicit InputFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }
  mode_t mode() const { return mode_; }  // who may read, write and execute it

  /// Fills `out` from `offset` on. Errors: IoError, also if the file ends before.
  void Read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  FileDescriptor fd_;
  FileIdentity identity_;
  mode_t mode_ = 0;
};

/// Throws the IoError of an operation on a file that failed. `error` is an errno.
[[noreturn]] void ThrowIo(const char* verb, const std::filesystem::path& path, int error);

/// Returns the folder that a path's file is in; "." for a name alone.
std::filesystem::path FolderOf(const std::filesystem::path& path);

/// Returns the bytes of a small file. Errors: InvalidArgument if it has more than `max_bytes`, or
/// as InputFile.
std::string ReadSmallFile(const std::filesystem::path& path, std::uint64_t max_bytes);

/// A file that appears whole or not at all: written under a temporary name in the same folder,
/// then renamed. Until Commit the old file, if any, is untouched; without Commit the temporary one
/// goes away. The temporary file is locked while it is written: one without a lock belongs to a
/// process that ended before its destructor ran. The new file has the mode of the one it replaces.
class AtomicFile {
 public:
  /// Gives a file that replaces none `new_mode`, less the process's umask. Errors: InvalidArgument
  /// if the folder does not exist, or if there is something at `path` that is no regular file;
  /// IoError if the folder cannot be written to.
  explicit AtomicFile(const std::filesystem::path& path, mode_t new_mode = 0666);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Writes bytes, or keeps a few and writes them together with those that follow. Starts to write
  /// them to the disk before Commit waits for it. Requires: no byte is written twice. Errors:
  /// IoError, which may be that of an earlier call.
  void Write(std::uint64_t offset, std::span<const std::byte> bytes);

  /// Waits until what was written is on the disk. Errors: IoError.
  void FlushToDisk();

  /// Puts the file in its place, on disk when this returns. Errors: IoError; the old file is still
  /// there, unless it is the folder that cannot be written to the disk: then the new file is.
  void Commit();

  /// Does as Commit, but keeps a file that is already there and then returns false. On a file
  /// system without hard links it replaces that file.
  bool CommitNew();

 private:
  /// Bytes of adjacent calls that were not written yet.
  struct Run {
    std::uint64_t begin = 0;
    std::vector<std::byte> bytes;
  };
  void Flush(Run& run);
  void SyncFolder();
  void WriteThrough(std::uint64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_, temporary_;
  FileDescriptor fd_;
  std::vector<Run> runs_;                // the last one was begun last
  std::uint64_t unsubmitted_bytes_ = 0;  // written since the system was last asked to store them
};

/// Removes the temporary files in `folder` that no running process writes. Keeps a file whose lock
/// cannot be tested, and ignores a folder that cannot be read.
void RemoveLeftovers(const std::filesystem::path& folder);

/// Replaces the file at `path` by `text`, atomically. Errors: as AtomicFile.
void WriteSmallFile(const std::filesystem::path& path, const std::string& text);

/// Writes a small file unless there is one at `path`. Returns false, and leaves the file as it is,
/// if there is one. Errors: as AtomicFile.
bool WriteNewFile(const std::filesystem::path& path, const std::string& text);

/// Replaces the file at `to` by a copy of `from`, atomically. A new file gets the mode of `from`.
/// Errors: as InputFile and AtomicFile.
void CopyFileAtomically(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace narrowfloat::io
