// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "narrowfloat/io/file.h"
#include "narrowfloat/io/safetensors_header.h"

namespace narrowfloat::io {

/// Returns the start of messages about a file: "safetensors: <path>".
std::string SafetensorsSource(const std::filesystem::path& path);

/// A safetensors file with a checked header; the data is read on demand. Any thread may read.
class SafetensorsFile {
 public:
  /// Opens a file. Errors: InvalidArgument "safetensors: <path>: rule, value" if it is damaged or
  /// its header is invalid; as InputFile.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& path() const { return file_.path(); }
  const FileIdentity& identity() const { return file_.identity(); }
  const Header& header() const { return header_; }

  /// Returns the tensor of that name, or null.
  const TensorEntry* Find(std::string_view name) const;

  /// Fills `out` with bytes of a tensor from `offset` on. Errors: InvalidArgument if it has fewer;
  /// IoError.
  void Read(const TensorEntry& entry, std::uint64_t offset, std::span<std::byte> out) const;

 private:
  InputFile file_;
  Header header_;
  std::uint64_t data_begin_ = 0;
  std::unordered_map<std::string_view, const TensorEntry*> by_name_;  // into header_
};

/// Writes a safetensors file: the header from a list of tensors, then their data in pieces, tensors
/// in any order. The file is created completely by Finish or FinishNew, or not at all.
class SafetensorsWriter {
 public:
  /// Writes the header. Reads only names, types and shapes of `tensors`. Errors: InvalidArgument as
  /// LayOut and PrintHeader; as AtomicFile.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorEntry> tensors,
                    Metadata metadata);

  const Header& header() const { return header_; }

  /// Appends the next bytes of the tensor. Errors: InvalidArgument if there is no such tensor or it
  /// has fewer bytes; IoError.
  void Append(std::string_view name, std::span<const std::byte> bytes);

  /// Waits until the file's bytes are on the disk, so that Finish only has to move it. Errors: as
  /// Finish.
  void FlushToDisk();

  /// Moves the file to its path. Errors: InvalidArgument if a tensor still lacks bytes; IoError.
  void Finish();

  /// Does as Finish if there is no file at the path; otherwise keeps it and returns false.
  bool FinishNew();

 private:
  void CheckIsFull() const;

  struct Progress {
    const TensorEntry* entry;
    std::uint64_t written;
  };

  std::string source_;
  Header header_;
  std::unordered_map<std::string_view, Progress> by_name_;  // into header_
  std::uint64_t data_begin_ = 0;
  AtomicFile file_;
};

}  // namespace narrowfloat::io
