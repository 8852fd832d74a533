// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/companion.h"

#include <fmt/format.h>

#include "narrowfloat/io/strict_json.h"

namespace narrowfloat::io {

using nlohmann::json;

json ReadCompanion(const std::filesystem::path& folder, const char* name) {
  const std::filesystem::path path = folder / name;
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return nullptr;
  return ParsePythonJson("config: " + path.string(), ReadSmallFile(path, kMaxCompanionBytes),
                         kCompanionDepth);
}

json ReadCompanion(const Checkpoint& checkpoint, const char* name) {
  return checkpoint.folder() ? ReadCompanion(*checkpoint.folder(), name) : nullptr;
}

std::string ReadCompanionText(const Checkpoint& checkpoint, const char* name) {
  return ReadSmallFile(checkpoint.folder().value_or(".") / name, kMaxCompanionBytes);
}

json ValueAt(const json& value, std::initializer_list<const char*> keys) {
  const json* at = &value;
  for (const char* key : keys) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return *at;
}

namespace {

json ValueAt(const json& config, const QuantizationPlace& place) {
  const auto& [object, key] = place;
  return object == nullptr ? io::ValueAt(config, {key}) : io::ValueAt(config, {object, key});
}

}  // namespace

json QuantizationOf(const json& config) {
  for (const QuantizationPlace& place : kQuantizationPlaces) {
    json value = ValueAt(config, place);
    if (!value.is_null()) return value;
  }
  return nullptr;
}

std::string QuantizationPlaceOf(const json& config) {
  for (const QuantizationPlace& place : kQuantizationPlaces) {
    if (ValueAt(config, place).is_null()) continue;
    return place.object == nullptr ? place.key : fmt::format("{}.{}", place.object, place.key);
  }
  return "";
}

std::optional<std::string> TextAt(const json& value, std::initializer_list<const char*> keys) {
  const json text = ValueAt(value, keys);
  return text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt;
}

std::optional<std::size_t> BlockLength(const json& value) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 31;
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto length = value.get<std::uint64_t>();
  return length - 1 < kLargest ? std::optional<std::size_t>(length) : std::nullopt;
}

}  // namespace narrowfloat::io
