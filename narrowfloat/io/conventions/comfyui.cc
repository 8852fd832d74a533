// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/foreign_weight.h"
#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/schemes/fp8_block.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

constexpr std::string_view kScale = ".weight_scale", kGlobal = ".weight_scale_2";
constexpr std::string_view kLayer = ".comfy_quant", kLayers = "_quantization_metadata";
constexpr int kMaxDepth = 8;
constexpr std::uint64_t kMaxLayerBytes = 65536;

constexpr WeightNames kWeights[] = {
    {.codes = kPlainWeight,
     .scale = ".scale_weight",
     .plain = kPlainWeight,
     .evidence = Evidence::kFp8},
    {.codes = kPlainWeight, .scale = kScale, .plain = kPlainWeight},
};

constexpr std::string_view kInputScales[] = {".scale_input", ".input_scale"};
constexpr std::string_view kAccessories[] = {kLayer, "scaled_fp8"};
constexpr std::string_view kMarks[] = {kLayer, "scaled_fp8"};
constexpr std::string_view kMetadataMarks[] = {kLayers};

/// A format, by its name in a layer's description.
struct LayerFormat {
  std::string_view name;
  FileDType codes;
  std::optional<BlockShape> block{};
  bool is_nvfp4 = false, is_swizzled = false;
};

constexpr LayerFormat kMxfp8Layer = {"mxfp8", FileDType::kF8E4M3, std::nullopt, false, true};
constexpr LayerFormat kNvfp4Layer = {"nvfp4", FileDType::kU8, std::nullopt, true, true};
constexpr LayerFormat kFormats[] = {
    {"float8_e4m3fn", FileDType::kF8E4M3, kWholeTensor},
    {"float8_e5m2", FileDType::kF8E5M2, kWholeTensor},
    {"float8_e4m3fn_rowwise", FileDType::kF8E4M3, kWholeRow},
    {"float8_e4m3fn_blockwise", FileDType::kF8E4M3, BlockShape{kFp8Block, kFp8Block}},
    kMxfp8Layer,
    kNvfp4Layer,
};

const LayerFormat& FindFormat(const std::string& source, const std::string& name) {
  std::string known;
  for (const LayerFormat& format : kFormats) {
    if (format.name == name) return format;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format.name);
  }
  throw Unsupported(
      fmt::format("{}: format must be one of {}, got '{}'", source, known, Shortened(name)));
}

std::string LayerOf(const std::string& name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

/// Rejects options that change the meaning of codes and scales.
void CheckOptions(const std::string& source, const json& options) {
  const json turned = ValueAt(options, {"convrot"});
  if (!turned.is_null() && turned != false) {
    throw Unsupported(fmt::format("{}: weights must not be rotated (convrot)", source));
  }
}

WeightDescription Describe(const std::string& layer, const LayerFormat& format) {
  return {.plain = layer + std::string(kPlainWeight),
          .codes = layer + std::string(kPlainWeight),
          .scale = layer + std::string(kScale),
          .global = format.is_nvfp4 ? layer + std::string(kGlobal) : "",
          .code_types = {format.codes},
          .block = format.block,
          .swizzled = format.is_swizzled,
          .high_half_first = format.is_nvfp4};
}

/// Rejects padded codes: their values would not fit the model.
void CheckIsNotPadded(const std::string& source, const Checkpoint& checkpoint,
                      const LayerFormat& format, const std::string& codes, const json& options) {
  const json stated = ValueAt(options, {"orig_shape"});
  const TensorLocation found = checkpoint.Find(codes);
  if (!stated.is_array() || found.tensor == nullptr) return;
  Shape shape = found.tensor->entries.front().shape;
  if (format.is_nvfp4 && !shape.empty()) shape.back() *= 2;  // two codes in a byte
  if (stated == json(shape)) return;
  throw Unsupported(fmt::format("{}: '{}' must have the values of orig_shape {}, got {}", source,
                                codes, ShortenedJson(stated), ShapeText(shape)));
}

WeightDescription Describe(const std::string& source, const Checkpoint& checkpoint,
                           const std::string& layer, const json& options) {
  const auto name = TextAt(options, {"format"});
  if (!name) {
    throw InvalidArgument(
        fmt::format("{}: needs a format, got {}", source, ShortenedJson(options)));
  }
  CheckOptions(source, options);
  const LayerFormat& format = FindFormat(source, *name);
  WeightDescription weight = Describe(layer, format);
  CheckIsNotPadded(source, checkpoint, format, weight.codes, options);
  return weight;
}

/// Returns the weights with block scales of a checkpoint that describes no layer. Detects them by
/// the types of the scales: programs that save tensors drop the metadata.
std::vector<WeightDescription> DescribeByTypes(const Checkpoint& checkpoint) {
  std::vector<WeightDescription> weights;
  for (const TensorLocation& location : checkpoint.tensors()) {
    const TensorEntry& entry = location.tensor->entries.front();
    if (!entry.name.ends_with(kScale) || WideFloat(entry.dtype)) continue;
    const bool mxfp8 = HoldsExponents(entry.dtype);
    weights.push_back(Describe(LayerOf(entry.name, kScale), mxfp8 ? kMxfp8Layer : kNvfp4Layer));
  }
  return weights;
}

/// Returns the descriptions of __metadata__, which lists all layers.
std::vector<WeightDescription> DescribeByMetadata(const Checkpoint& checkpoint,
                                                  const Shard& shard) {
  std::vector<WeightDescription> weights;
  const auto& metadata = shard.file.header().metadata;
  const auto found = metadata.find(std::string(kLayers));
  if (found == metadata.end()) return weights;
  const std::string source = fmt::format("read: {}: {}", shard.name, kLayers);
  const json layers = ValueAt(ParseStrictJson(source, found->second, kMaxDepth), {"layers"});
  if (!layers.is_object()) {
    throw InvalidArgument(fmt::format("{}: needs an object of layers", source));
  }
  for (const auto& [layer, options] : layers.items()) {
    weights.push_back(
        Describe(fmt::format("{}: '{}'", source, Shortened(layer)), checkpoint, layer, options));
  }
  return weights;
}

/// Returns the description of one layer from its JSON text in a tensor's bytes.
WeightDescription DescribeByTensor(const Checkpoint& checkpoint, const TensorLocation& location) {
  const TensorEntry& entry = location.tensor->entries.front();
  const std::string source = fmt::format("read: '{}'", entry.name);
  if (entry.dtype != FileDType::kU8 || entry.Bytes() > kMaxLayerBytes) {
    throw InvalidArgument(fmt::format("{} must be at most {} bytes of U8, got {} of {}", source,
                                      kMaxLayerBytes, entry.Bytes(), Info(entry.dtype).name));
  }
  std::string text(entry.Bytes(), '\0');
  ReadBuffer(location, 0, std::as_writable_bytes(std::span(text)));
  return Describe(source, checkpoint, LayerOf(entry.name, kLayer),
                  ParseStrictJson(source, text, kMaxDepth));
}

/// Rejects block scales in layers without a description: they may be in rows or in tiles.
void CheckScales(const Checkpoint& checkpoint, const std::vector<WeightDescription>& weights) {
  std::set<std::string_view> described;
  for (const WeightDescription& weight : weights) described.insert(weight.scale);
  for (const TensorLocation& location : checkpoint.tensors()) {
    const TensorEntry& entry = location.tensor->entries.front();
    if (!entry.name.ends_with(kScale) || WideFloat(entry.dtype) || described.contains(entry.name)) {
      continue;
    }
    throw InvalidArgument(
        fmt::format("read: '{}' ({}) needs the tensor '{}{}', which says how its scales lie",
                    entry.name, Info(entry.dtype).name, LayerOf(entry.name, kScale), kLayer));
  }
}

/// Returns all descriptions. A tensor's own one overrides __metadata__, as in ComfyUI's loader.
std::vector<WeightDescription> DescribeAll(const Checkpoint& checkpoint) {
  std::vector<WeightDescription> weights;
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (location.tensor->IsPlain() && location.tensor->name.ends_with(kLayer)) {
      weights.push_back(DescribeByTensor(checkpoint, location));
    }
  }
  for (const Shard& shard : checkpoint.shards()) {
    for (WeightDescription& weight : DescribeByMetadata(checkpoint, shard)) {
      const std::string own = LayerOf(weight.plain, kPlainWeight) + std::string(kLayer);
      if (checkpoint.Find(own).tensor == nullptr) weights.push_back(std::move(weight));
    }
  }
  if (weights.empty()) return DescribeByTypes(checkpoint);
  CheckScales(checkpoint, weights);
  return weights;
}

}  // namespace

/// Describes files of ComfyUI: `scaled_fp8` and scale_weight, or a description of each layer. NVFP4
/// and MXFP8 have swizzled scales; in NVFP4, a byte has its first code in the high half. A decoded
/// code is multiplied by its scales.
constinit const ConventionRow kComfyUi{.name = "comfyui",
                                       .other_names = {},
                                       .weights = kWeights,
                                       .accessories = kAccessories,
                                       .input_scales = kInputScales,
                                       .marks = kMarks,
                                       .metadata_marks = kMetadataMarks,
                                       .describe = &DescribeAll};

}  // namespace narrowfloat::io
