// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
// Tensors of a safetensors file are sorted by type, so a job that writes them in another order
// appends at one position per type. Each position has a buffer, a Run: writes of less than 64 kB
// take longer than a copy to a buffer.
constexpr std::size_t kRuns = 6, kRunBytes = std::size_t{256} << 10;
constexpr std::uint64_t kStartBytes = std::uint64_t{64} << 20;
constexpr std::string_view kTemporaryPrefix = ".narrowfloat-";
constexpr std::string_view kTemporarySuffix = ".partial";
constexpr mode_t kModeBits = S_IRWXU | S_IRWXG | S_IRWXO;

FileDescriptor OpenForReading(const std::string& path) {
  // O_NONBLOCK, so that a pipe at this path is rejected instead of blocking the call.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) return FileDescriptor(fd);
  if (errno == ENOENT || errno == ENOTDIR) {
    throw InvalidArgument(fmt::format("read: {}, does not exist", path));
  }
  if (errno == ELOOP) {
    throw InvalidArgument(fmt::format("read: {}, must not be a loop of symbolic links", path));
  }
  ThrowIo("read", path, errno);
}

/// Locks a new temporary file. Returns false if RemoveLeftovers removed it before the lock. Accepts
/// a file system without locks, where leftovers stay.
bool LockTemporary(const FileDescriptor& fd) {
  struct stat status {};
  return ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0
             ? errno != EWOULDBLOCK
             : ::fstat(fd.get(), &status) != 0 || status.st_nlink > 0;
}

/// Returns the permission bits of the regular file at `path` that a new file replaces; nullopt if
/// there is none. Follows links. Errors: InvalidArgument if `path` is not a regular file.
std::optional<mode_t> ModeOfReplaced(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  if (S_ISREG(status.st_mode)) return status.st_mode & kModeBits;
  // A rename would replace a device or pipe, and programs could then no longer open it.
  throw InvalidArgument(
      fmt::format("write: {}, must be a regular file or a new one", path.string()));
}

/// Creates a file with an unused name. The process id makes names differ within one machine. In a
/// folder shared by several machines, O_EXCL rejects a name that is in use.
FileDescriptor OpenTemporary(const std::filesystem::path& path, mode_t new_mode,
                             std::filesystem::path& temporary) {
  static std::atomic<unsigned> counter = 0;
  const std::optional<mode_t> replaced = ModeOfReplaced(path);
  // Private until it has the replaced file's mode, which may be private too.
  const mode_t mode = replaced ? S_IRUSR | S_IWUSR : new_mode;
  for (;;) {
    temporary = FolderOf(path) / fmt::format("{}{}-{}{}", kTemporaryPrefix, ::getpid(),
                                             counter.fetch_add(1), kTemporarySuffix);
    FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (fd.get() >= 0 && LockTemporary(fd)) {
      if (replaced) ::fchmod(fd.get(), *replaced);  // some file systems have no modes
      return fd;
    }
    if (fd.get() >= 0 || errno == EEXIST) continue;
    const int error = errno;
    temporary.clear();
    if (error == ENOENT || error == ENOTDIR) {
      throw InvalidArgument(fmt::format("write: {}, its folder must exist", path.string()));
    }
    ThrowIo("write", path, error);
  }
}

}  // namespace

void ThrowIo(const char* verb, const std::filesystem::path& path, int error) {
  throw IoError(fmt::format("{}: {}, {}", verb, path.string(), std::strerror(error)));
}

std::filesystem::path FolderOf(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

int FileDescriptor::Release() {
  return std::exchange(fd_, -1);
}

InputFile::InputFile(const std::filesystem::path& path)
    : path_(path.string()), fd_(OpenForReading(path_)) {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) ThrowIo("read", path_, errno);
  if (!S_ISREG(status.st_mode)) {
    throw InvalidArgument(fmt::format("read: {}, must be a regular file", path_));
  }
  identity_ = {static_cast<std::uint64_t>(status.st_size),
               std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
  mode_ = status.st_mode & kModeBits;
}

void InputFile::Read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) ThrowIo("read", path_, errno);
    if (count == 0) {
      throw IoError(fmt::format("read: {}, the file was cut short while it was read, at byte {}",
                                path_, offset));
    }
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

std::string ReadSmallFile(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const InputFile file(path);
  const std::uint64_t bytes = file.identity().bytes;
  if (bytes > max_bytes) {
    throw InvalidArgument(
        fmt::format("read: {}, must have at most {} bytes, got {}", file.path(), max_bytes, bytes));
  }
  std::string text(bytes, '\0');
  file.Read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

AtomicFile::AtomicFile(const std::filesystem::path& path, mode_t new_mode)
    : path_(path), fd_(OpenTemporary(path_, new_mode, temporary_)) {}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::Write(std::uint64_t offset, std::span<const std::byte> bytes) {
  const auto run =
      std::ranges::find_if(runs_, [&](const Run& r) { return r.begin + r.bytes.size() == offset; });
  if (bytes.size() >= kRunBytes) {
    if (run != runs_.end()) {
      Flush(*run);
      run->begin += bytes.size();
    }
    WriteThrough(offset, bytes);
  } else if (run != runs_.end()) {
    run->bytes.insert(run->bytes.end(), bytes.begin(), bytes.end());
    if (run->bytes.size() >= kRunBytes) Flush(*run);
  } else {
    if (runs_.size() == kRuns) {
      Flush(runs_.front());
      std::rotate(runs_.begin(), runs_.begin() + 1, runs_.end());  // reuses its memory
    } else {
      runs_.emplace_back().bytes.reserve(kRunBytes);
    }
    runs_.back().begin = offset;
    runs_.back().bytes.assign(bytes.begin(), bytes.end());
  }
}

void AtomicFile::Flush(Run& run) {
  WriteThrough(run.begin, run.bytes);
  run.begin += run.bytes.size();
  run.bytes.clear();
}

void AtomicFile::WriteThrough(std::uint64_t offset, std::span<const std::byte> bytes) {
  unsubmitted_bytes_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) ThrowIo("write", path_, errno);
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  if (unsubmitted_bytes_ < kStartBytes) return;
  // A hint: if the file system does not support it, Commit does all of the work.
  ::sync_file_range(fd_.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  unsubmitted_bytes_ = 0;
}

void AtomicFile::Commit() {
  FlushToDisk();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) ThrowIo("write", path_, errno);
  temporary_.clear();
  SyncFolder();
}

bool AtomicFile::CommitNew() {
  FlushToDisk();
  // Unlike rename, link replaces no file. The destructor removes the temporary name.
  if (::link(temporary_.c_str(), path_.c_str()) != 0) {
    if (errno == EEXIST) return false;
    const bool has_links = errno != EPERM && errno != ENOTSUP && errno != ENOSYS;
    if (has_links) ThrowIo("write", path_, errno);
    Commit();
    return true;
  }
  SyncFolder();
  return true;
}

void AtomicFile::FlushToDisk() {
  for (Run& run : runs_) Flush(run);
  if (::fsync(fd_.get()) != 0) ThrowIo("write", path_, errno);
}

void AtomicFile::SyncFolder() {
  // The new name is in the folder, which must be synchronized too. A file system that cannot do so
  // returns EINVAL and orders its writes itself.
  const FileDescriptor folder(::open(FolderOf(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0 && ::fsync(folder.get()) != 0 && errno != EINVAL) {
    ThrowIo("write", path_, errno);
  }
}

void RemoveLeftovers(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kTemporaryPrefix) || !name.ends_with(kTemporarySuffix)) continue;
    // O_NONBLOCK, so that a pipe with such a name does not block the call.
    const FileDescriptor fd(
        ::open(at->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
    ::unlink(at->path().c_str());
  }
}

void WriteSmallFile(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.Write(0, std::as_bytes(std::span(text)));
  file.Commit();
}

bool WriteNewFile(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path);
  file.Write(0, std::as_bytes(std::span(text)));
  return file.CommitNew();
}

void CopyFileAtomically(const std::filesystem::path& from, const std::filesystem::path& to) {
  const InputFile in(from);
  AtomicFile out(to, in.mode());
  std::vector<std::byte> piece(kCopyBytes);
  for (std::uint64_t at = 0; at < in.identity().bytes;) {
    const std::uint64_t count = std::min<std::uint64_t>(piece.size(), in.identity().bytes - at);
    in.Read(at, std::span(piece).first(count));
    out.Write(at, std::span(piece).first(count));
    at += count;
  }
  out.Commit();
}

}  // namespace narrowfloat::io
