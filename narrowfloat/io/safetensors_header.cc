// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

constexpr const char* kMetadataKey = "__metadata__";
constexpr int kDepth = 3;  // header, entry, its lists
constexpr std::uint64_t kPadding = 8;

template <class... Args>
[[noreturn]] void Refuse(const std::string& source, fmt::format_string<Args...> rule,
                         Args&&... args) {
  throw InvalidArgument(
      fmt::format("{}: {}", source, fmt::format(rule, std::forward<Args>(args)...)));
}

Metadata ParseMetadata(const std::string& source, const json& value) {
  if (!value.is_object()) {
    Refuse(source, "{} must be an object, got {}", kMetadataKey, value.type_name());
  }
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      Refuse(source, "{} must map strings to strings, '{}' is {}", kMetadataKey, key,
             text.type_name());
    }
    metadata.emplace(key, text.get_ref<const std::string&>());
  }
  return metadata;
}

/// An array of integers that fit into 63 bits.
std::vector<std::uint64_t> ParseNumbers(const std::string& source, const std::string& name,
                                        const char* key, const json& value) {
  if (!value.is_array()) {
    Refuse(source, "'{}' {} must be a list, got {}", name, key, value.type_name());
  }
  std::vector<std::uint64_t> numbers;
  for (const json& item : value) {
    constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > kMax) {
      Refuse(source, "'{}' {} must hold integers from 0 to 2^63 - 1, got {}", name, key,
             item.dump());
    }
    numbers.push_back(item.get<std::uint64_t>());
  }
  return numbers;
}

void CheckKeys(const std::string& source, const std::string& name, const json& value) {
  if (!value.is_object()) Refuse(source, "'{}' must be an object, got {}", name, value.type_name());
  constexpr const char* kKeys[] = {"dtype", "shape", "data_offsets"};
  for (const char* key : kKeys) {
    if (!value.contains(key)) Refuse(source, "'{}' needs a {}, got none", name, key);
  }
  if (value.size() == std::size(kKeys)) return;
  for (const auto& [key, unused] : value.items()) {
    if (std::ranges::find(kKeys, key) == std::end(kKeys)) {
      Refuse(source, "'{}' must have dtype, shape and data_offsets only, got '{}'", name, key);
    }
  }
}

TensorEntry ParseEntry(const std::string& source, const std::string& name, const json& value) {
  CheckKeys(source, name, value);
  const json& dtype = value["dtype"];
  const auto known = dtype.is_string() ? FindFileDType(dtype.get_ref<const std::string&>())
                                       : std::optional<FileDType>();
  if (!known) Refuse(source, "'{}' must have a known dtype, got {}", name, dtype.dump());
  TensorEntry entry{.name = name, .dtype = *known};
  for (const std::uint64_t n : ParseNumbers(source, name, "shape", value["shape"])) {
    entry.shape.push_back(static_cast<std::int64_t>(n));
  }
  const auto offsets = ParseNumbers(source, name, "data_offsets", value["data_offsets"]);
  if (offsets.size() != 2) {
    Refuse(source, "'{}' data_offsets must be two numbers, got {}", name, offsets.size());
  }
  std::tie(entry.begin, entry.end) = std::tie(offsets[0], offsets[1]);
  if (entry.end < entry.begin) {
    Refuse(source, "'{}' data_offsets must not fall, got {} to {}", name, entry.begin, entry.end);
  }
  const std::uint64_t bytes = TensorBytes(source, entry);
  if (bytes != entry.Bytes()) {
    Refuse(source, "'{}' of {} {} takes {} bytes, its data_offsets span {}", name,
           Info(entry.dtype).name, ShapeText(entry.shape), bytes, entry.Bytes());
  }
  return entry;
}

/// The data is covered exactly: no hole, no overlap, nothing after the last tensor.
void CheckCover(const std::string& source, const Header& header, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.end > data_bytes) {
      Refuse(source, "'{}' must end within the data of {} bytes, got {}", entry.name, data_bytes,
             entry.end);
    }
    if (entry.begin != at) {
      Refuse(source, "'{}' must begin where the tensor before it ends, at {}, got {} ({})",
             entry.name, at, entry.begin, entry.begin > at ? "a hole" : "an overlap");
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    Refuse(source, "the last tensor must end with the file, {} bytes follow it", data_bytes - at);
  }
}

}  // namespace

std::uint64_t TensorBytes(const std::string& source, const TensorEntry& entry) {
  // First of all: the messages below, and others, print the shape.
  if (entry.shape.size() > kMaxRank) {
    Refuse(source, "'{}' must have at most {} dimensions, got {}", entry.name, kMaxRank,
           entry.shape.size());
  }
  const std::string_view dtype = Info(entry.dtype).name;
  std::uint64_t bits = 0;
  try {
    const std::uint64_t elements = FlattenShape(entry.shape).Size();
    const std::uint64_t bits_each = Info(entry.dtype).bits;
    if (elements > std::numeric_limits<std::uint64_t>::max() / bits_each) {
      Refuse(source, "'{}' of {} {} has more bytes than memory can address", entry.name, dtype,
             ShapeText(entry.shape));
    }
    bits = elements * bits_each;
  } catch (const InvalidArgument& error) {
    if (std::string_view(error.what()).starts_with(source + ": ")) throw;
    Refuse(source, "'{}', {}", entry.name, error.what());
  }
  if (bits % 8 != 0) {
    Refuse(source, "'{}' of {} {} must end on a whole byte, got {} bits", entry.name, dtype,
           ShapeText(entry.shape), bits);
  }
  return bits / 8;
}

Header ParseHeader(const std::string& source, std::string_view text, std::uint64_t data_bytes) {
  if (!text.starts_with('{')) {
    Refuse(source, "the header must begin with '{{', got {}",
           text.empty() ? "nothing"
                        : fmt::format("byte {:#04x}", static_cast<unsigned char>(text[0])));
  }
  const json parsed = ParseStrictJson(source, text, kDepth);
  Header header;
  for (const auto& [name, value] : parsed.items()) {
    if (name == kMetadataKey) {
      header.metadata = ParseMetadata(source, value);
    } else {
      header.tensors.push_back(ParseEntry(source, name, value));
    }
  }
  std::ranges::sort(header.tensors, {}, [](const TensorEntry& entry) {
    return std::tie(entry.begin, entry.end, entry.name);
  });
  CheckCover(source, header, data_bytes);
  return header;
}

void LayOut(const std::string& source, std::vector<TensorEntry>& tensors) {
  std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  std::vector<std::string_view> names;
  std::uint64_t at = 0;
  for (TensorEntry& entry : tensors) {
    if (entry.name == kMetadataKey) Refuse(source, "no tensor may be named {}", kMetadataKey);
    names.push_back(entry.name);
    const std::uint64_t bytes = TensorBytes(source, entry);
    if (bytes > std::numeric_limits<std::int64_t>::max() - at) {
      Refuse(source, "'{}' ends past the largest file there can be", entry.name);
    }
    entry.begin = at;
    entry.end = at += bytes;
  }
  std::ranges::sort(names);
  const auto repeated = std::ranges::adjacent_find(names);
  if (repeated != names.end()) Refuse(source, "names must stand once, '{}' is repeated", *repeated);
}

std::string PrintHeader(const std::string& source, const Header& header) {
  std::string text = "{";
  const auto add = [&](const std::string& name, const std::string& value) {
    if (text.size() > 1) text += ',';
    text += json(name).dump() + ':' + value;
  };
  try {
    if (!header.metadata.empty()) add(kMetadataKey, json(header.metadata).dump());
    for (const TensorEntry& entry : header.tensors) {
      add(entry.name,
          fmt::format(R"({{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                      Info(entry.dtype).name, json(entry.shape).dump(), entry.begin, entry.end));
    }
  } catch (const json::type_error&) {
    Refuse(source, "names and metadata must be UTF-8, got other bytes");
  }
  text += '}';
  text.append((kPadding - text.size() % kPadding) % kPadding, ' ');
  if (text.size() > kMaxHeaderBytes) {
    Refuse(source, "the header must have at most {} bytes, got {}", kMaxHeaderBytes, text.size());
  }
  std::string length(kHeaderLengthBytes, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  }
  return length + text;
}

}  // namespace narrowfloat::io
