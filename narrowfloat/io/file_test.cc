// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "narrowfloat/io/testing.h"
#include "narrowfloat/tensor/testing.h"

namespace narrowfloat::io {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// Limits the size of this process's files during its lifetime, to simulate a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const struct rlimit limit { bytes, previous_.rlim_max };
    previous_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    std::signal(SIGXFSZ, previous_handler_);
  }

 private:
  struct rlimit previous_ {};
  void (*previous_handler_)(int);
};

mode_t ModeOf(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(AtomicFileTest, AppearsWholeOnCommit) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "out");
    file.Write(2, Bytes("cd"));
    file.Write(0, Bytes("ab"));
    EXPECT_FALSE(folder.Names().contains("out"));
    EXPECT_EQ(folder.Names().size(), 1u);
    file.Commit();
  }
  EXPECT_EQ(folder.Names(), std::set<std::string>{"out"});
  EXPECT_EQ(ReadText(folder / "out"), "abcd");
}

TEST(AtomicFileTest, OfTwoNewFilesOfOneNameTheFirstStays) {
  const TemporaryFolder folder;
  EXPECT_TRUE(WriteNewFile(folder / "out", "first"));
  EXPECT_FALSE(WriteNewFile(folder / "out", "second"));
  EXPECT_EQ(folder.Names(), std::set<std::string>{"out"});
  EXPECT_EQ(ReadText(folder / "out"), "first");
}

TEST(AtomicFileTest, WithoutCommitTheOldFileStays) {
  const TemporaryFolder folder;
  WriteText(folder / "out", "old");
  { AtomicFile(folder / "out").Write(0, Bytes("new")); }
  EXPECT_EQ(folder.Names(), std::set<std::string>{"out"});
  EXPECT_EQ(ReadText(folder / "out"), "old");
}

TEST(AtomicFileTest, AFailureInTheMiddleLeavesTheOldFile) {
  const TemporaryFolder folder;
  WriteText(folder / "out", "old");
  const FileSizeLimit limit(4096);
  EXPECT_EQ(MessageOf<IoError>([&] {
              AtomicFile file(folder / "out");
              file.Write(0, Bytes("new"));
              file.Write(3, Bytes(std::string(8192, 'x')));
              file.Commit();
            }),
            "write: " + (folder / "out").string() + ", File too large");
  EXPECT_EQ(folder.Names(), std::set<std::string>{"out"});
  EXPECT_EQ(ReadText(folder / "out"), "old");
}

TEST(AtomicFileTest, PiecesOfAnySizeAndOrderComeTogether) {
  const TemporaryFolder folder;
  constexpr std::size_t kSize = std::size_t{3} << 20, kPlaces = 9;
  std::string text(kPlaces * kSize, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7919 >> 8);
  // Writes pieces at 9 positions in turn, more than AtomicFile has buffers: small, odd, large ones.
  AtomicFile file(folder / "out");
  std::size_t written = 0, step = 0;
  while (written < kSize) {
    const std::size_t sizes[] = {1, 1000, 70'001, 300'000, 1 << 20};
    const std::size_t size = std::min(sizes[step++ % std::size(sizes)], kSize - written);
    for (std::size_t place = 0; place < kPlaces; ++place) {
      const std::size_t at = place * kSize + written;
      file.Write(at, Bytes(text.substr(at, size)));
    }
    written += size;
  }
  file.Commit();
  EXPECT_TRUE(ReadText(folder / "out") == text);
}

TEST(AtomicFileTest, ReplacesRegularFilesAlone) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", folder / "link");
  const std::set<std::string> before = folder.Names();
  for (const char* name : {"folder", "pipe", "link"}) {
    EXPECT_EQ(MessageOf<InvalidArgument>([&] { WriteSmallFile(folder / name, "x"); }),
              "write: " + (folder / name).string() + ", must be a regular file or a new one");
  }
  EXPECT_EQ(folder.Names(), before);
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "link"));
  std::filesystem::create_symlink("nothing", folder / "hole");
  WriteSmallFile(folder / "hole", "x");
  EXPECT_EQ(ReadText(folder / "hole"), "x");
}

TEST(AtomicFileTest, ANewFileHasTheModeOfTheOneThatItReplaces) {
  const TemporaryFolder folder;
  WriteSmallFile(folder / "new", "x");
  WriteText(folder / "plain", "x");
  EXPECT_EQ(ModeOf(folder / "new"), ModeOf(folder / "plain"));
  for (const mode_t mode : {0600u, 0440u, 0755u, 0666u}) {
    ASSERT_EQ(::chmod((folder / "new").c_str(), mode), 0);
    WriteSmallFile(folder / "new", "y");
    EXPECT_EQ(ModeOf(folder / "new"), mode);
  }
  ASSERT_EQ(::chmod((folder / "new").c_str(), 0600), 0);
  AtomicFile file(folder / "new");
  std::filesystem::remove(folder / "plain");
  for (const std::string& name : folder.Names()) EXPECT_EQ(ModeOf(folder / name.c_str()), 0600u);
}

TEST(AtomicFileTest, NeedsAFolder) {
  const TemporaryFolder folder;
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { AtomicFile(folder / "no" / "out"); }),
            "write: " + (folder / "no" / "out").string() + ", its folder must exist");
}

TEST(AtomicFileTest, TwoWritersOfOneNameDoNotMix) {
  const TemporaryFolder folder;
  AtomicFile first(folder / "out"), second(folder / "out");
  first.Write(0, Bytes("first"));
  second.Write(0, Bytes("2nd"));
  first.Commit();
  EXPECT_EQ(ReadText(folder / "out"), "first");
  second.Commit();
  EXPECT_EQ(ReadText(folder / "out"), "2nd");
  EXPECT_EQ(folder.Names(), std::set<std::string>{"out"});
}

TEST(AtomicFileTest, LeftoversOfEndedProcessesGoAndOthersStay) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "out");
  file.Write(0, Bytes("new"));
  WriteText(folder / ".narrowfloat-1-0.partial", "of a process that was killed");
  WriteText(folder / "mine.partial", "not ours");
  EXPECT_EQ(folder.Names().size(), 3u);
  RemoveLeftovers(folder.path());
  EXPECT_EQ(folder.Names().size(), 2u);
  EXPECT_FALSE(folder.Names().contains(".narrowfloat-1-0.partial"));
  file.Commit();
  EXPECT_EQ(folder.Names(), (std::set<std::string>{"mine.partial", "out"}));
  EXPECT_EQ(ReadText(folder / "out"), "new");
  RemoveLeftovers(folder / "no");
}

TEST(AtomicFileTest, APipeNamedAsALeftoverIsNotWaitedFor) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / ".narrowfloat-1-1.partial";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ::alarm(30);  // ends a program that blocks
  RemoveLeftovers(folder.path());
  ::alarm(0);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe)) << "it is no file of this program";
}

TEST(InputFileTest, ALoopOfLinksIsInvalid) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("b", folder / "a");
  std::filesystem::create_symlink("a", folder / "b");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { InputFile(folder / "a"); }),
            "read: " + (folder / "a").string() + ", must not be a loop of symbolic links");
}

TEST(InputFileTest, NeedsARegularFile) {
  const TemporaryFolder folder;
  const auto message = [&](const char* name) {
    return MessageOf<InvalidArgument>([&] { InputFile(folder / name); });
  };
  EXPECT_EQ(message("no"), "read: " + (folder / "no").string() + ", does not exist");
  std::filesystem::create_directory(folder / "folder");
  EXPECT_EQ(message("folder"),
            "read: " + (folder / "folder").string() + ", must be a regular file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(message("pipe"), "read: " + (folder / "pipe").string() + ", must be a regular file");
}

TEST(InputFileTest, AFileCutShortMeanwhileIsAnError) {
  const TemporaryFolder folder;
  WriteText(folder / "in", "0123456789");
  const InputFile file(folder / "in");
  std::filesystem::resize_file(folder / "in", 4);
  std::array<std::byte, 4> out{};
  file.Read(0, out);
  EXPECT_EQ(static_cast<char>(out[3]), '3');
  EXPECT_EQ(MessageOf<IoError>([&] { file.Read(2, out); }),
            "read: " + (folder / "in").string() +
                ", the file was cut short while it was read, at byte 4");
}

TEST(InputFileTest, ASmallFileHasALimit) {
  const TemporaryFolder folder;
  WriteText(folder / "in", "12345");
  EXPECT_EQ(ReadSmallFile(folder / "in", 5), "12345");
  EXPECT_EQ(MessageOf<InvalidArgument>([&] { ReadSmallFile(folder / "in", 4); }),
            "read: " + (folder / "in").string() + ", must have at most 4 bytes, got 5");
}

TEST(CopyFileTest, CopiesEveryByte) {
  const TemporaryFolder folder;
  std::string text(3 * 1024 * 1024 + 17, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 >> 3);
  WriteText(folder / "in", text);
  CopyFileAtomically(folder / "in", folder / "out");
  EXPECT_EQ(ReadText(folder / "out"), text);
}

TEST(CopyFileTest, ANewFileHasTheModeOfItsSource) {
  const TemporaryFolder folder;
  WriteText(folder / "in", "x");
  for (const mode_t mode : {0700u, 0400u}) {
    ASSERT_EQ(::chmod((folder / "in").c_str(), mode), 0);
    CopyFileAtomically(folder / "in", folder / "out");
    EXPECT_EQ(ModeOf(folder / "out"), mode);
    std::filesystem::remove(folder / "out");
  }
  WriteText(folder / "out", "private");
  ASSERT_EQ(::chmod((folder / "out").c_str(), 0600), 0);
  ASSERT_EQ(::chmod((folder / "in").c_str(), 0644), 0);
  CopyFileAtomically(folder / "in", folder / "out");
  EXPECT_EQ(ModeOf(folder / "out"), 0600u);
}

}  // namespace
}  // namespace narrowfloat::io
