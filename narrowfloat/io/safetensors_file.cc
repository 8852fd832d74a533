// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/safetensors_file.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

/// Returns the kind of a file with these first bytes, if users often confuse it with safetensors.
std::string_view LookAlike(std::string_view bytes) {
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"version ", "a Git LFS pointer, of which the file itself was not fetched"},
      {"<!DOCTY", "an HTML page"},
      {"<!docty", "an HTML page"},
      {"<html", "an HTML page"},
      {"GGUF", "a GGUF file"},
      {"PK\x03\x04", "a zip archive, as torch.save writes"},
      {"\x80\x02", "a pickle, as torch.save writes"},
  };
  for (const auto& [begin, kind] : kKinds) {
    if (bytes.starts_with(begin)) return kind;
  }
  return "";
}

std::uint64_t ReadHeaderLength(const InputFile& file) {
  const std::uint64_t file_bytes = file.identity().bytes;
  const std::string source = SafetensorsSource(file.path());
  if (file_bytes < kHeaderLengthBytes) {
    throw InvalidArgument(
        fmt::format("{}: a file must begin with {} bytes of header length, got {}", source,
                    kHeaderLengthBytes, file_bytes));
  }
  std::array<std::byte, kHeaderLengthBytes> bytes{};
  file.Read(0, bytes);
  std::uint64_t length = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  }
  if (length > kMaxHeaderBytes) {
    const std::string_view kind =
        LookAlike({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!kind.empty()) {
      throw InvalidArgument(fmt::format("{}: must be a safetensors file, it is {}", source, kind));
    }
    throw InvalidArgument(
        fmt::format("{}: the header must have at most {} bytes, got {}: this is no safetensors "
                    "file, or its first {} bytes are damaged",
                    source, kMaxHeaderBytes, length, kHeaderLengthBytes));
  }
  if (length > file_bytes - kHeaderLengthBytes) {
    throw InvalidArgument(fmt::format("{}: the header of {} bytes must end within the file, got {}",
                                      source, length, file_bytes));
  }
  return length;
}

}  // namespace

std::string SafetensorsSource(const std::filesystem::path& path) {
  return "safetensors: " + path.string();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  std::string text(ReadHeaderLength(file_), '\0');
  file_.Read(kHeaderLengthBytes, std::as_writable_bytes(std::span(text)));
  data_begin_ = kHeaderLengthBytes + text.size();
  header_ = ParseHeader(SafetensorsSource(path), text, identity().bytes - data_begin_);
  for (const TensorEntry& entry : header_.tensors) by_name_.emplace(entry.name, &entry);
}

const TensorEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void SafetensorsFile::Read(const TensorEntry& entry, std::uint64_t offset,
                           std::span<std::byte> out) const {
  if (offset > entry.Bytes() || out.size() > entry.Bytes() - offset) {
    throw InvalidArgument(
        fmt::format("{}: a read of '{}' must end within its {} bytes, got {} from {}",
                    SafetensorsSource(path()), entry.name, entry.Bytes(), out.size(), offset));
  }
  file_.Read(data_begin_ + entry.begin + offset, out);
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorEntry> tensors, Metadata metadata)
    : source_(SafetensorsSource(path)),
      header_{(LayOut(source_, tensors), std::move(tensors)), std::move(metadata)},
      file_(path) {
  for (const TensorEntry& entry : header_.tensors) {
    by_name_.emplace(entry.name, Progress{&entry, 0});
  }
  const std::string text = PrintHeader(source_, header_);
  data_begin_ = text.size();
  file_.Write(0, std::as_bytes(std::span(text)));
}

void SafetensorsWriter::Append(std::string_view name, std::span<const std::byte> bytes) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    throw InvalidArgument(fmt::format("{}: '{}' must be in the header", source_, name));
  }
  auto& [entry, written] = found->second;
  if (bytes.size() > entry->Bytes() - written) {
    throw InvalidArgument(fmt::format("{}: '{}' must have {} bytes, got {} more after {}", source_,
                                      name, entry->Bytes(), bytes.size(), written));
  }
  file_.Write(data_begin_ + entry->begin + written, bytes);
  written += bytes.size();
}

void SafetensorsWriter::CheckIsFull() const {
  for (const TensorEntry& entry : header_.tensors) {
    const std::uint64_t written = by_name_.at(entry.name).written;
    if (written == entry.Bytes()) continue;
    throw InvalidArgument(fmt::format("{}: '{}' must have {} bytes, got {}", source_, entry.name,
                                      entry.Bytes(), written));
  }
}

void SafetensorsWriter::FlushToDisk() {
  CheckIsFull();
  file_.FlushToDisk();
}

void SafetensorsWriter::Finish() {
  CheckIsFull();
  file_.Commit();
}

bool SafetensorsWriter::FinishNew() {
  CheckIsFull();
  return file_.CommitNew();
}

}  // namespace narrowfloat::io
