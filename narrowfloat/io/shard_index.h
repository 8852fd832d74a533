// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "narrowfloat/io/safetensors_header.h"

namespace narrowfloat::io {

/// Contents of `*.safetensors.index.json`: the file of each tensor.
struct ShardIndex {
  std::map<std::string, std::string> weight_map;  // tensor -> file
  std::uint64_t total_size = 0;                   // bytes of all tensors; not read, it may be stale
  std::string other_metadata = "{}";              // JSON text of the other keys of "metadata"
};

inline constexpr std::string_view kIndexSuffix = ".safetensors.index.json";
inline constexpr std::string_view kFileSuffix = ".safetensors";
inline constexpr std::uint64_t kMaxIndexBytes = kMaxHeaderBytes;

/// Parses an index, which is untrusted: a file name must not point outside the folder.
/// Errors: InvalidArgument "<source>: rule, value".
ShardIndex ParseIndex(const std::string& source, std::string_view text);

/// Returns an index as text: two spaces of indentation, sorted keys, as in safetensors'
/// tools.
std::string PrintIndex(const ShardIndex& index);

}  // namespace narrowfloat::io
