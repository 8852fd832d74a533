// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "narrowfloat/io/safetensors_header.h"

namespace narrowfloat::io {

/// Contents of `*.safetensors.index.json`: the file that holds each tensor.
struct ShardIndex {
  std::map<std::string, std::string> weight_map;  // tensor -> file
  std::uint64_t total_size = 0;                   // bytes of all tensors; not read, it may be stale
  std::string other_metadata = "{}";              // JSON text of what else "metadata" had
};

inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kFileSuffix = ".safetensors";
inline constexpr std::uint64_t kMaxIndexBytes = kMaxHeaderBytes;

/// Parses an index. The text is hostile until parsed: a file name may not lead out of the folder.
/// Errors: InvalidArgument "<source>: rule, value".
ShardIndex ParseIndex(const std::string& source, std::string_view text);

/// Returns an index as text: two spaces of indentation, sorted keys, as safetensors' tools write
/// it.
std::string PrintIndex(const ShardIndex& index);

}  // namespace narrowfloat::io
