// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "narrowfloat/io/checkpoint.h"

/// The JSON files beside a model's tensors that describe their quantization. Only .cc files include
/// this header.
namespace narrowfloat::io {

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kQuantizationKey = "quantization_config";  // in kConfigFile
inline constexpr const char* kTextModelKey = "text_config";  // in kConfigFile: its text model
inline constexpr const char* kModelOptFile = "hf_quant_config.json";  // ModelOpt's own

inline constexpr int kCompanionDepth = 64;  // limit of nested objects and arrays

/// The largest file. It may name the 70,000 experts of Kimi K2 under each prefix, in 20 MB.
inline constexpr std::uint64_t kMaxCompanionBytes = std::uint64_t{32} << 20;

/// Parses a JSON file of a folder; null if there is no such file. Errors: InvalidArgument if it is
/// damaged; IoError.
nlohmann::json ReadCompanion(const std::filesystem::path& folder, const char* name);

/// Parses a JSON file of the checkpoint's folder; null if there is no folder or no such file.
/// Errors: as above.
nlohmann::json ReadCompanion(const Checkpoint& checkpoint, const char* name);

/// Returns the bytes of a file in the checkpoint's folder. Errors: InvalidArgument if the file does
/// not exist; IoError.
std::string ReadCompanionText(const Checkpoint& checkpoint, const char* name);

/// Returns the value at value[keys[0]][keys[1]]...; null if a key is missing.
nlohmann::json ValueAt(const nlohmann::json& value, std::initializer_list<const char*> keys);

/// A location in config.json that may describe the model's quantization.
struct QuantizationPlace {
  const char* object;  // the object with the key; nullptr: config.json itself
  const char* key;
};

/// The locations in vLLM's order. Older files of compressed-tensors have the second key.
inline constexpr QuantizationPlace kQuantizationPlaces[] = {{nullptr, kQuantizationKey},
                                                            {nullptr, "compression_config"},
                                                            {kTextModelKey, kQuantizationKey},
                                                            {kTextModelKey, "compression_config"}};

/// Returns the value at the first of these locations that has one; null if none has.
nlohmann::json QuantizationOf(const nlohmann::json& config);

/// Returns the name of that location, such as "text_config.quantization_config"; an empty text if
/// none has a value.
std::string QuantizationPlaceOf(const nlohmann::json& config);

/// Returns the string at value[keys[0]][keys[1]]...; nullopt if a key is missing or its value is
/// not a string.
std::optional<std::string> TextAt(const nlohmann::json& value,
                                  std::initializer_list<const char*> keys);

/// Returns the length of a block in a file; nullopt unless it is an integer from 1 to 2^31.
std::optional<std::size_t> BlockLength(const nlohmann::json& value);

}  // namespace narrowfloat::io
