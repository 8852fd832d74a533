// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

constexpr std::string_view kNames = "tensor_names", kPlainType = "Tensor";
constexpr int kMaxDepth = 16;
constexpr std::string_view kMetadataMarks[] = {kNames};

/// One of torchao's tensor classes.
struct TensorClass {
  std::string_view name;
  std::vector<FileDType> codes;
};

const TensorClass& FindClass(const std::string& source, const std::string& name) {
  static const TensorClass kClasses[] = {
      {"Float8Tensor", {FileDType::kF8E4M3, FileDType::kF8E5M2}},
      {"MXTensor", {FileDType::kF8E4M3}},
      {"NVFP4Tensor", {FileDType::kF4, FileDType::kU8}},
  };
  std::string names(kPlainType);
  for (const TensorClass& known : kClasses) {
    if (known.name == name) return known;
    names += fmt::format(", {}", known.name);
  }
  throw Unsupported(
      fmt::format("{}: _type must be one of {}, got '{}'", source, names, Shortened(name)));
}

/// Codes of MXTensor, by the name of the elements' type.
struct MxElement {
  std::string_view name;
  std::vector<FileDType> codes;
};

/// Returns the allowed types of codes. For MXTensor they depend on the elements, since 6-bit codes
/// are stored in bytes as 4-bit codes are.
std::vector<FileDType> CodeTypes(const std::string& source, const TensorClass& tensor_class,
                                 const json& attributes) {
  const json element = ValueAt(attributes, {"elem_dtype"});
  if (element.is_null()) return tensor_class.codes;
  static const MxElement kTypes[] = {
      {"float8_e4m3fn", {FileDType::kF8E4M3}},
      {"float8_e5m2", {FileDType::kF8E5M2}},
      {"float4_e2m1fn_x2", {FileDType::kF4, FileDType::kU8}},
  };
  const json name = element.is_string() ? element : ValueAt(element, {"_data"});
  std::string names;
  for (const MxElement& type : kTypes) {
    if (name == type.name) return type.codes;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", type.name);
  }
  throw Unsupported(fmt::format("{}: elem_dtype must be one of {}, got {}", source, names,
                                ShortenedJson(element)));
}

bool IsTrue(const json& attributes, const char* key) {
  return ValueAt(attributes, {key}) == true;
}

/// Returns the stem of the data tensors' names: "a.weight" has "a._weight_qdata".
std::string DataStem(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos
             ? fmt::format("_{}_", name)
             : fmt::format("{}._{}_", name.substr(0, dot), name.substr(dot + 1));
}

/// Returns the block of a matrix: MXTensor and NVFP4Tensor state its length, Float8Tensor its size
/// in each dimension. Returns nullopt if nothing is stated, or if a block spans several matrices.
std::optional<BlockShape> BlockOf(const std::string& source, const json& size) {
  if (size.is_number()) {
    const auto length = BlockLength(size);
    if (length) return BlockShape{1, *length};
    throw InvalidArgument(fmt::format("{}: block_size must be an integer of 1 to 2^31, got {}",
                                      source, ShortenedJson(size)));
  }
  if (!size.is_array() || size.size() < 2) return std::nullopt;
  const std::size_t matrix = size.size() - 2;
  const bool stacks = std::all_of(size.begin(), size.begin() + static_cast<std::ptrdiff_t>(matrix),
                                  [](const json& length) { return length == 1; });
  const auto rows = BlockLength(size[matrix]), cols = BlockLength(size[matrix + 1]);
  return stacks && rows && cols ? std::optional(BlockShape{*rows, *cols}) : std::nullopt;
}

WeightDescription Describe(const std::string& source, const std::string& name,
                           const TensorClass& tensor_class, const json& object) {
  const std::string stem = DataStem(name);
  WeightDescription weight{.plain = name,
                           .codes = stem + "qdata",
                           .scale = stem + "scale",
                           .global = {},
                           .code_types = {}};
  const json attributes = ValueAt(object, {"_data"});
  weight.code_types = CodeTypes(source, tensor_class, attributes);
  weight.swizzled = IsTrue(attributes, "is_swizzled_scales");
  weight.block = BlockOf(source, ValueAt(attributes, {"block_size"}));
  for (const json& part : ValueAt(object, {"_tensor_data_names"})) {
    const std::string data = part.is_string() ? part.get<std::string>() : part.dump();
    if (data == "per_tensor_scale") {
      weight.global = stem + data;
    } else if (data == "act_per_tensor_scale") {
      weight.accessories.push_back(stem + data);
    } else if (data != "qdata" && data != "scale") {
      throw Unsupported(
          fmt::format("{}: data must be qdata, scale, per_tensor_scale or act_per_tensor_scale, "
                      "got '{}'",
                      source, Shortened(data)));
    }
  }
  return weight;
}

/// Adds the weights of one file. Every file of a model may describe all of them: `known` has the
/// names from previous files.
void DescribeShard(const Shard& shard, std::set<std::string>& known,
                   std::vector<WeightDescription>& weights) {
  const Metadata& metadata = shard.file.header().metadata;
  const auto names = metadata.find(std::string(kNames));
  if (names == metadata.end()) return;
  const std::string source = "read: " + shard.name;
  for (const json& item :
       ParseStrictJson(fmt::format("{}: {}", source, kNames), names->second, 1)) {
    const auto name = item.is_string() ? item.get<std::string>() : item.dump();
    const auto text = metadata.find(name);
    const std::string place = fmt::format("{}: metadata '{}'", source, Shortened(name));
    if (text == metadata.end()) {
      throw InvalidArgument(fmt::format("{} is missing, {} names it", place, kNames));
    }
    const json object = ParseStrictJson(place, text->second, kMaxDepth);
    const std::string type = TextAt(object, {"_type"}).value_or("");
    if (type == kPlainType) continue;
    const TensorClass& tensor_class = FindClass(place, type);
    if (known.insert(name).second) weights.push_back(Describe(place, name, tensor_class, object));
  }
}

std::vector<WeightDescription> DescribeAll(const Checkpoint& checkpoint) {
  std::vector<WeightDescription> weights;
  std::set<std::string> known, codes;
  for (const Shard& shard : checkpoint.shards()) DescribeShard(shard, known, weights);
  for (const WeightDescription& weight : weights) codes.insert(weight.codes);
  for (const TensorLocation& location : checkpoint.tensors()) {
    const std::string& name = location.tensor->name;
    if (!name.ends_with(kTorchAoCodes) || codes.contains(name)) continue;
    throw InvalidArgument(
        fmt::format("read: '{}' holds codes and needs a description in __metadata__", name));
  }
  return weights;
}

/// Returns the keys in the list kNames; an empty vector if its text is damaged.
std::vector<std::string> DescriptionKeys(const Metadata& metadata) {
  std::vector<std::string> keys;
  const auto names = metadata.find(std::string(kNames));
  if (names == metadata.end()) return keys;
  try {
    for (const json& item : ParseStrictJson(std::string(kNames), names->second, 1)) {
      if (item.is_string()) keys.push_back(item.get<std::string>());
    }
  } catch (const InvalidArgument&) {  // NOLINT(bugprone-empty-catch): another convention was read
  }
  return keys;
}

}  // namespace

/// Describes files of torchao: tensor subclasses, flattened into safetensors. A decoded code is
/// multiplied by its scales.
constinit const ConventionRow kTorchAo{.name = "torchao",
                                       .other_names = {},
                                       .weights = {},
                                       .accessories = {},
                                       .metadata_marks = kMetadataMarks,
                                       .describe = &DescribeAll,
                                       .description_keys = &DescriptionKeys};

}  // namespace narrowfloat::io
