// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "narrowfloat/io/safetensors_header.h"

namespace narrowfloat::io {

/// Contents of `*.safetensors.index.json`: the file of each tensor.
struct ShardIndex {
  std::map<std::string, std::vector<std::string>> tensors;  // names by file, sorted
  std::uint64_t total_size = 0;       // bytes of all tensors; not read, it may be stale
  std::string other_metadata = "{}";  // JSON text of the other keys of "metadata"
};

inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kFileSuffix = ".safetensors";

// Bounds of an index's memory: its text, and about 100 bytes per tensor and 200 per file besides
// their names, 300 MB in total. The largest models have about 70,000 weights, of which NVFP4 in
// both directions makes 490,000 tensors with 56 MB of text.
inline constexpr std::uint64_t kMaxIndexBytes = kMaxHeaderBytes;
inline constexpr std::size_t kMaxIndexTensors = 1'000'000;
inline constexpr std::size_t kMaxIndexFiles = 100'000;
inline constexpr std::size_t kMaxIndexOther = std::size_t{1} << 20;  // bytes beside weight_map

/// Returns the text that begins messages about an index.
std::string IndexSource(const std::filesystem::path& path);

/// Parses an index, which is untrusted: a file name must not point outside the folder.
/// Errors: InvalidArgument "<source>: rule, value", also for an index beyond the bounds above.
ShardIndex ParseIndex(const std::string& source, std::string_view text);

/// Returns an index as text: two spaces of indentation, sorted keys, as in safetensors'
/// tools. Requires: no name is repeated. Errors: InvalidArgument for an index beyond the bounds.
std::string PrintIndex(const std::string& source, const ShardIndex& index);

}  // namespace narrowfloat::io
