// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/shard_index.h"

#include <fmt/format.h>

#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

constexpr int kDepth = 8;  // the reference uses 2; other keys of "metadata" may nest
constexpr const char* kTotalSize = "total_size";

/// Rejects a file name that points outside the folder, or into a folder below it.
void CheckFileName(const std::string& source, const std::string& file) {
  if (file.find('/') == std::string::npos && file.find('\0') == std::string::npos &&
      file.ends_with(kFileSuffix)) {
    return;
  }
  throw InvalidArgument(fmt::format(
      "{}: weight_map must name *{} files of its own folder, got '{}'", source, kFileSuffix, file));
}

}  // namespace

ShardIndex ParseIndex(const std::string& source, std::string_view text) {
  const json parsed = ParseStrictJson(source, text, kDepth);
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object()) {
    throw InvalidArgument(fmt::format("{}: an index needs an object weight_map, got none", source));
  }
  ShardIndex index;
  for (const auto& [name, file] : parsed["weight_map"].items()) {
    if (!file.is_string()) {
      throw InvalidArgument(fmt::format("{}: weight_map must map strings to strings, '{}' is {}",
                                        source, name, file.type_name()));
    }
    CheckFileName(source, file.get_ref<const std::string&>());
    index.weight_map.emplace(name, file.get_ref<const std::string&>());
  }
  if (index.weight_map.empty()) {
    throw InvalidArgument(
        fmt::format("{}: weight_map must name at least one tensor, got none", source));
  }
  if (parsed.contains("metadata") && parsed["metadata"].is_object()) {
    json metadata = parsed["metadata"];
    metadata.erase(kTotalSize);
    index.other_metadata = metadata.dump();
  }
  return index;
}

std::string PrintIndex(const ShardIndex& index) {
  json metadata = json::parse(index.other_metadata);
  metadata[kTotalSize] = index.total_size;
  const json object = {{"metadata", metadata}, {"weight_map", index.weight_map}};
  return object.dump(2) + "\n";
}

}  // namespace narrowfloat::io
