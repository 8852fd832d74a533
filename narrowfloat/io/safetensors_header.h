// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/io/file_dtype.h"
#include "narrowfloat/tensor/shape.h"

namespace narrowfloat::io {

/// A tensor of a file. `begin` and `end` count bytes from the start of the data, after the header.
struct TensorEntry {
  std::string name;
  FileDType dtype = FileDType::kU8;
  Shape shape{};
  std::uint64_t begin = 0, end = 0;

  std::uint64_t Bytes() const { return end - begin; }
  bool operator==(const TensorEntry&) const = default;
};

using Metadata = std::map<std::string, std::string>;

/// A file's header. `tensors` have the order of their data, without holes.
struct Header {
  std::vector<TensorEntry> tensors;
  Metadata metadata;

  std::uint64_t DataBytes() const { return tensors.empty() ? 0 : tensors.back().end; }
  bool operator==(const Header&) const = default;
};

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
inline constexpr std::uint64_t kHeaderLengthBytes = 8;         // little-endian, before the header
inline constexpr std::size_t kMaxRank = 64;                    // NumPy's limit

// Bounds of a header's memory: about 1 kB per tensor, 300 MB in total. DeepSeek-V4 has 72,317
// tensors in all its files; their names and shapes have 5 MB.
inline constexpr std::size_t kMaxTensors = 100'000;  // per file; also the limit of metadata keys
inline constexpr std::size_t kMaxNameBytes = 1024;   // per tensor name
inline constexpr std::uint64_t kMaxTextBytes = std::uint64_t{16} << 20;  // names, shapes, metadata

/// Returns the bytes of a tensor by its type and shape. Errors: InvalidArgument if they overflow or
/// end within a byte, or if there are more than kMaxRank dimensions; `source` begins the message.
std::uint64_t TensorBytes(const std::string& source, const TensorEntry& entry);

/// Parses a header's JSON, which is untrusted; `data_bytes` follow it in the file.
/// Errors: InvalidArgument "<source>: rule, value", also for a header beyond the bounds above.
Header ParseHeader(const std::string& source, std::string_view text, std::uint64_t data_bytes);

/// Sorts tensors in the reference writer's order, by alignment of the types (largest first), then
/// by name, and sets the position of each. Errors: InvalidArgument if a name is repeated, reserved
/// or too long, or if there are more than kMaxTensors.
void LayOut(const std::string& source, std::vector<TensorEntry>& tensors);

/// Returns a file's first bytes: the header's length, its JSON, and spaces up to a multiple of 8.
/// Requires: LayOut has set the positions. Errors: InvalidArgument if a text is not UTF-8, or if
/// ParseHeader or the reference refuses the header.
std::string PrintHeader(const std::string& source, const Header& header);

}  // namespace narrowfloat::io
