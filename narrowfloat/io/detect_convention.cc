// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/detect_convention.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/conventions/unscaled_fp8.h"
#include "narrowfloat/io/foreign_weight.h"
#include "narrowfloat/io/integer_codes.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

/// Names a checkpoint without quantized tensors.
constexpr std::string_view kPlainName = "plain";

/// Names a checkpoint with this library's buffers but without their metadata. Programs that read
/// and save tensors drop the metadata.
constexpr std::string_view kLostMetadataName = "narrowfloat without metadata";

/// Names a checkpoint that fits two conventions with different values.
constexpr std::string_view kAmbiguousName = "modelopt or comfyui";

/// Names a convention that neither a description nor the names of tensors identify.
constexpr std::string_view kUnknownName = "unknown";

/// Names MLX's convention, which is not read. MLX describes it in config.json under kMlxKey, and
/// newer versions also under kQuantizationKey.
constexpr std::string_view kMlxName = "mlx";
constexpr const char* kMlxKey = "quantization";

/// Returns whether a tensor can hold codes, by its type and rank.
bool CanHoldCodes(const TensorLocation& location) {
  const FileDType dtype = location.tensor->entries.front().dtype;
  return location.tensor->quantized || IsNarrowFloat(dtype) ||
         (MayBeIntegerCodes(dtype) && location.tensor->shape().size() >= 2);
}

/// Returns DetectedConvention::stale for a convention named in `file`. A model whose KV cache alone
/// is quantized has float weights.
std::string StaleText(const Checkpoint& checkpoint, std::string_view file) {
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (CanHoldCodes(location) || IsCacheScale(location.tensor->name)) return "";
  }
  const json config = ReadCompanion(checkpoint, kConfigFile);
  const json owners = ReadCompanion(checkpoint, kModelOptFile);
  if (!ValueAt(QuantizationOf(config), {"kv_cache_scheme"}).is_null()) return "";
  if (!ValueAt(owners, {"quantization", "kv_cache_quant_algo"}).is_null()) return "";
  return fmt::format(
      "{} states that weights are quantized, but no tensor holds codes; if they are floats, remove "
      "{}",
      file, file == kModelOptFile ? "this file" : "its " + QuantizationPlaceOf(config));
}

/// Returns the convention named in the JSON files beside the tensors, or nullopt. ModelOpt's own
/// file is read before config.json.
std::optional<DetectedConvention> GuessOfCompanions(const Checkpoint& checkpoint) {
  const json owners = ReadCompanion(checkpoint, kModelOptFile);
  if (const auto name = TextAt(owners, {"producer", "name"})) return {{*name, kModelOptFile}};
  const json config = ReadCompanion(checkpoint, kConfigFile);
  if (const auto method = TextAt(QuantizationOf(config), {"quant_method"})) {
    return {{*method, kConfigFile}};
  }
  return std::nullopt;
}

/// Returns the name of a buffer with codes of this library that has its scales but no metadata;
/// nullptr if the checkpoint has no such buffer.
const std::string* FindOrphan(const Checkpoint& checkpoint) {
  for (const TensorLocation& location : checkpoint.tensors()) {
    const std::string& name = location.tensor->name;
    if (location.tensor->quantized) continue;
    constexpr std::pair<Role, Role> kPairs[] = {{Role::kRowwiseData, Role::kRowwiseScaleInv},
                                                {Role::kColumnwiseData, Role::kColumnwiseScaleInv}};
    for (const auto& [codes, scales] : kPairs) {
      const std::string suffix = BufferName("", codes);
      if (!name.ends_with(suffix)) continue;
      const std::string stem = name.substr(0, name.size() - suffix.size());
      if (checkpoint.Find(BufferName(stem, scales)).tensor != nullptr) return &name;
    }
  }
  return nullptr;
}

std::string_view WithoutDot(std::string_view suffix) {
  return suffix.substr(suffix.find_first_not_of("._"));
}

/// Returns whether the types of codes and scales match the evidence of a row.
bool HasEvidence(Evidence evidence, FileDType codes, FileDType scale) {
  switch (evidence) {
    case Evidence::kFp8:
      return IsFp8(codes);
    case Evidence::kBytes:
      return codes == FileDType::kU8;
    case Evidence::kBytePairs:
      return codes == FileDType::kU8 && scale == FileDType::kU8;
    case Evidence::kInt8Pairs:
      return codes == FileDType::kI8 && scale == FileDType::kF8E8M0;
    case Evidence::kNone:
    case Evidence::kName:
      break;
  }
  return false;
}

/// Returns, for messages, why a tensor fits a row of names; an empty text if it does not fit.
std::string ReasonOf(const Checkpoint& checkpoint, const TensorLocation& location,
                     const WeightNames& names) {
  const std::string& name = location.tensor->name;
  if (names.evidence == Evidence::kNone || !name.ends_with(names.codes)) return "";
  if (names.evidence == Evidence::kName) return std::string(WithoutDot(names.codes));
  const std::string stem = name.substr(0, name.size() - names.codes.size());
  const auto sibling = [&](std::string_view suffix) -> const TensorEntry* {
    const TensorLocation found = checkpoint.Find(stem + std::string(suffix));
    const bool plain = found.tensor != nullptr && !found.tensor->quantized;
    return plain ? &found.tensor->entries.front() : nullptr;
  };
  const FileDType codes = location.tensor->entries.front().dtype;
  const TensorEntry* scale = sibling(names.scale);
  if (scale == nullptr || !HasEvidence(names.evidence, codes, scale->dtype)) return "";
  if (!names.global.empty() && sibling(names.global) == nullptr) return "";
  return fmt::format("{} {} with {}{}", IsFp8(codes) ? "FP8" : Info(codes).name,
                     WithoutDot(names.codes), names.evidence == Evidence::kBytePairs ? "U8 " : "",
                     WithoutDot(names.global.empty() ? names.scale : names.global));
}

std::optional<DetectedConvention> GuessOfMarks(const Checkpoint& checkpoint,
                                               const ConventionRow& row) {
  for (const std::string_view key : row.metadata_marks) {
    for (const Shard& shard : checkpoint.shards()) {
      if (shard.file.header().metadata.contains(std::string(key))) {
        return {{std::string(row.name), fmt::format("metadata {}", key)}};
      }
    }
  }
  for (const std::string_view mark : row.marks) {
    for (const TensorLocation& location : checkpoint.tensors()) {
      if (location.tensor->name.ends_with(mark)) {
        return {{std::string(row.name), fmt::format("tensor {}", location.tensor->name)}};
      }
    }
  }
  return std::nullopt;
}

std::optional<DetectedConvention> GuessOfNames(const Checkpoint& checkpoint,
                                               const ConventionRow& row) {
  for (const WeightNames& names : row.weights) {
    for (const TensorLocation& location : checkpoint.tensors()) {
      const std::string reason = ReasonOf(checkpoint, location, names);
      if (reason.empty()) continue;
      return {{std::string(row.name), fmt::format("{}: {}", location.tensor->name, reason)}};
    }
  }
  return std::nullopt;
}

/// Possible orders of a weight's scales, by their number of items.
enum class ScaleOrders : std::uint8_t { kRows, kTiles, kBoth, kNone };

bool FitsOrder(const TensorEntry& codes, const TensorEntry& scale, bool swizzled) {
  const WeightNames names{.codes = "", .scale = "", .plain = ""};
  const WeightHints hints{.swizzled = swizzled, .needs_global = false};
  try {
    return !DescribeWeight("", names, codes, scale, nullptr, hints).shape.empty();
  } catch (const InvalidArgument&) {
    return false;
  }
}

/// Compares the scales at `location` with the shapes of both orders; kNone if there are no such
/// scales.
ScaleOrders OrdersOf(const Checkpoint& checkpoint, const TensorLocation& location) {
  constexpr std::string_view kCodes = ".weight", kScale = ".weight_scale", kGlobal = "_2";
  const std::string& name = location.tensor->name;
  if (!name.ends_with(kScale)) return ScaleOrders::kNone;
  const std::string stem = name.substr(0, name.size() - kScale.size());
  const TensorLocation weight = checkpoint.Find(stem + std::string(kCodes));
  if (weight.tensor == nullptr) return ScaleOrders::kNone;
  const TensorEntry &codes = weight.tensor->entries.front(),
                    &scale = location.tensor->entries.front();
  const bool has_global = checkpoint.Find(name + std::string(kGlobal)).tensor != nullptr;
  const bool nvfp4 =
      codes.dtype == FileDType::kU8 && scale.dtype == FileDType::kF8E4M3 && has_global;
  const bool mxfp8 = codes.dtype == FileDType::kF8E4M3 && HoldsExponents(scale.dtype);
  if (!nvfp4 && !mxfp8) return ScaleOrders::kNone;
  const bool rows = FitsOrder(codes, scale, false), tiles = FitsOrder(codes, scale, true);
  if (rows && tiles) return ScaleOrders::kBoth;
  return tiles ? ScaleOrders::kTiles : ScaleOrders::kRows;
}

/// Distinguishes ComfyUI's NVFP4 and MXFP8 from other conventions with the same names and types:
/// ComfyUI's scales are in the tiles that GEMMs read. One weight with scales that fit only one
/// order decides for all. If all weights fit both orders, the convention is ambiguous.
std::optional<DetectedConvention> GuessOfScaleOrder(const Checkpoint& checkpoint) {
  const std::string* ambiguous = nullptr;
  for (const TensorLocation& location : checkpoint.tensors()) {
    const std::string& name = location.tensor->name;
    switch (OrdersOf(checkpoint, location)) {
      case ScaleOrders::kTiles:
        return {{std::string(kComfyUi.name), fmt::format("{}: scales in tiles", name)}};
      case ScaleOrders::kRows:
        return std::nullopt;
      case ScaleOrders::kBoth:
        if (ambiguous == nullptr) ambiguous = &name;
        break;
      case ScaleOrders::kNone:
        break;
    }
  }
  if (ambiguous == nullptr) return std::nullopt;
  return {{.name = std::string(kAmbiguousName),
           .reason = fmt::format("the scales '{}' may lie row by row (modelopt, "
                                 "compressed-tensors) or in tiles (comfyui)",
                                 *ambiguous),
           .detection = Detection::kAmbiguous}};
}

/// Finds integer codes by names that are not read.
std::optional<DetectedConvention> GuessOfIntegers(const Checkpoint& checkpoint) {
  const auto found = FindScaledIntegers(checkpoint);
  if (!found) return std::nullopt;
  const json config = ReadCompanion(checkpoint, kConfigFile);
  json described = QuantizationOf(config);
  if (described.is_null()) described = ValueAt(config, {kMlxKey});
  if (found->codes->dtype == FileDType::kU32 && BlockLength(ValueAt(described, {"group_size"})) &&
      BlockLength(ValueAt(described, {"bits"}))) {
    return {{std::string(kMlxName), kConfigFile}};
  }
  return {
      {std::string(kUnknownName), fmt::format("{}: {}, '{}' may be its scale", found->codes->name,
                                              Info(found->codes->dtype).name, found->scale->name)}};
}

/// Returns an unknown convention if config.json describes one without a quant_method.
std::optional<DetectedConvention> GuessOfDescription(const Checkpoint& checkpoint) {
  const json described = QuantizationOf(ReadCompanion(checkpoint, kConfigFile));
  const bool has_values =
      described.is_object() &&
      std::ranges::any_of(described, [](const json& value) { return !value.is_null(); });
  if (!has_values) return std::nullopt;
  return {{.name = std::string(kUnknownName),
           .reason = kConfigFile,
           .stale = StaleText(checkpoint, kConfigFile)}};
}

/// Finds codes and scales that fit no row of names. Codes without scales may be unscaled FP8.
std::optional<DetectedConvention> GuessOfRest(const Checkpoint& checkpoint) {
  std::size_t fp8 = 0;
  for (const TensorLocation& location : checkpoint.tensors()) {
    const std::string& name = location.tensor->name;
    const FileDType dtype = location.tensor->entries.front().dtype;
    if (name.ends_with(kTorchAoCodes)) {
      return {{"torchao without metadata", fmt::format("{}: codes of torchao", name)}};
    }
    if (IsFp8(dtype)) {
      ++fp8;
    } else if (IsNarrowFloat(dtype)) {
      return {{std::string(kUnknownName),
               fmt::format("{}: {} by no known names", name, Info(dtype).name)}};
    }
  }
  if (fp8 == 0) return std::nullopt;
  if (const auto pair = FindPossibleScale(checkpoint)) {
    return {{std::string(kUnknownName),
             fmt::format("{}: FP8, '{}' may be its scale", pair->weight, pair->scale)}};
  }
  return {{.name = std::string(kUnscaledFp8Name),
           .reason = fmt::format("{} of FP8 without scales: their codes are taken as values",
                                 fp8 == 1 ? "1 tensor" : fmt::format("{} tensors", fp8)),
           .assumed = true}};
}

/// Finds the convention. Does not check whether its codes are integers.
DetectedConvention FindConventionOf(const Checkpoint& checkpoint) {
  if (const auto lost = FindLostMetadata(checkpoint)) return *lost;
  for (const TensorLocation& location : checkpoint.tensors()) {
    if (location.tensor->quantized) {
      return {std::string(kConventionName), "metadata of its tensors"};
    }
  }
  if (auto guess = GuessOfCompanions(checkpoint)) {
    guess->stale = StaleText(checkpoint, guess->reason);
    return *guess;
  }
  for (const ConventionRow* row : Conventions()) {
    if (const auto guess = GuessOfMarks(checkpoint, *row)) return *guess;
  }
  if (const auto guess = GuessOfScaleOrder(checkpoint)) return *guess;
  for (const ConventionRow* row : Conventions()) {
    if (const auto guess = GuessOfNames(checkpoint, *row)) return *guess;
  }
  if (const auto guess = GuessOfIntegers(checkpoint)) return *guess;
  if (const auto guess = GuessOfDescription(checkpoint)) return *guess;
  if (const auto guess = GuessOfRest(checkpoint)) return *guess;
  return {.name = std::string(kPlainName),
          .reason = "no tensor is quantized",
          .detection = Detection::kPlain};
}

/// Returns a convention's name, followed by the format's name from config.json.
std::string WithFormat(const Checkpoint& checkpoint, std::string_view convention) {
  const json config = QuantizationOf(ReadCompanion(checkpoint, kConfigFile));
  for (const char* key : {"format", "quant_algo"}) {
    if (const auto format = TextAt(config, {key})) return fmt::format("{} {}", convention, *format);
  }
  return fmt::format("{} with integers", convention);
}

}  // namespace

std::optional<DetectedConvention> FindLostMetadata(const Checkpoint& checkpoint) {
  const std::string* orphan = FindOrphan(checkpoint);
  if (orphan == nullptr) return std::nullopt;
  return {{.name = std::string(kLostMetadataName),
           .reason = fmt::format("{}: a buffer of this library that __metadata__ does not describe",
                                 *orphan),
           .detection = Detection::kLostMetadata}};
}

DetectedConvention DetectConvention(const Checkpoint& checkpoint) {
  DetectedConvention found = FindConventionOf(checkpoint);
  const ConventionRow* row = FindConvention(found.name);
  const TensorEntry* codes = row == nullptr ? nullptr : FindIntegerCodes(checkpoint, *row);
  if (codes == nullptr) return found;
  return {WithFormat(checkpoint, row->name),
          fmt::format("{}: {} codes that are integers", codes->name, Info(codes->dtype).name)};
}

}  // namespace narrowfloat::io
