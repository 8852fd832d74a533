// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/read_convention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "narrowfloat/io/companion.h"
#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

/// Returns the block of the strategy that all groups of compressed-tensors have; nullopt if the
/// strategies differ or have no known block.
std::optional<BlockShape> BlockOfStrategy(const json& groups) {
  std::optional<BlockShape> block;
  for (const json& group : groups) {
    const json weights = ValueAt(group, {"weights"});
    const std::string strategy = TextAt(weights, {"strategy"}).value_or("");
    const auto size = BlockLength(ValueAt(weights, {"group_size"}));
    std::optional<BlockShape> own;
    if (strategy == "tensor") own = kWholeTensor;
    if (strategy == "channel") own = kWholeRow;
    if (strategy == "group" && size) own = BlockShape{1, *size};
    if (!own || (block && block != own)) return std::nullopt;
    block = own;
  }
  return block;
}

/// Returns the number that a text consists of; null if it is not one.
json NumberOf(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? json(number) : json();
}

/// Returns the size of a block: a list [rows, columns] or, as compressed-tensors also writes it, a
/// text "128x128".
std::optional<BlockShape> ParseBlock(const json& block) {
  json sizes = block;
  if (block.is_string()) {
    const auto& text = block.get_ref<const std::string&>();
    const std::size_t by = std::min(text.find('x'), text.size());
    sizes = json::array(
        {NumberOf(text.substr(0, by)), NumberOf(text.substr(std::min(by + 1, text.size())))});
  }
  if (!sizes.is_array() || sizes.size() != 2) return std::nullopt;
  const auto rows = BlockLength(sizes[0]), cols = BlockLength(sizes[1]);
  return rows && cols ? std::optional(BlockShape{*rows, *cols}) : std::nullopt;
}

constexpr const char* kBlockKey = "weight_block_size";  // of all weights

/// Returns the block in the configuration, under the key of any convention.
std::optional<BlockShape> ConfiguredBlock(const json& quantization) {
  json block = ValueAt(quantization, {kBlockKey});
  const json groups = ValueAt(quantization, {"config_groups"});
  for (auto group = groups.begin(); block.is_null() && groups.is_object() && group != groups.end();
       ++group) {
    block = ValueAt(*group, {"weights", "block_structure"});
  }
  if (block.is_null()) return groups.is_object() ? BlockOfStrategy(groups) : std::nullopt;
  if (const auto parsed = ParseBlock(block)) return parsed;
  throw InvalidArgument(
      fmt::format("config: the block size of weights must be two integers of 1 to 2^31, got {}",
                  ShortenedJson(block)));
}

/// Rejects a configuration that gives some weights another meaning than their codes and
/// scales.
void CheckMeaning(const std::string& source, const json& quantization, const char* key) {
  const json value = ValueAt(quantization, {key});
  if (value.is_null() || (value.is_object() && ValueAt(value, {"config_groups"}).empty())) return;
  throw Unsupported(
      fmt::format("{}: {} is not supported, it changes what weights mean", source, key));
}

/// Returns whether tensors of that type may be integer codes.
bool MayHoldIntegers(FileDType dtype) {
  return dtype == FileDType::kI8 || dtype == FileDType::kU8 || dtype == FileDType::kI32;
}

constexpr std::string_view kZeroPoint = ".weight_zero_point";

bool EndsWithAny(std::string_view name, std::span<const std::string_view> suffixes) {
  return std::ranges::any_of(suffixes, [&](auto suffix) { return name.ends_with(suffix); });
}

bool IsCodes(const WeightNames& names, const TensorEntry& entry) {
  return entry.name.ends_with(names.codes) && MayHoldCodes(entry.dtype);
}

/// Returns the names of weights with a part of this name and type; nullptr if it is no such part.
const WeightNames* FindPart(const ConventionRow& convention, const TensorEntry& entry) {
  const bool is_float = WideFloat(entry.dtype).has_value();
  for (const WeightNames& names : convention.weights) {
    // A norm may be called `scale`.
    const bool is_scale =
        entry.name.ends_with(names.scale) && !(is_float && names.scale == ".scale");
    if (is_scale || IsCodes(names, entry)) return &names;
  }
  return nullptr;
}

/// Returns whether float models do not have tensors of that name, by the convention's suffixes.
bool IsAccessory(const ConventionRow& convention, std::string_view name) {
  return EndsWithAny(name, convention.accessories) || EndsWithAny(name, convention.input_scales) ||
         (convention.has_cache_scales && IsCacheScale(name));
}

[[noreturn]] void RefuseMeaning(const std::string& source, const std::string& name) {
  throw Unsupported(
      fmt::format("{}: '{}' is not supported, it changes what its weight means", source, name));
}

/// Rejects a tensor that float models do not have: a copy of it would lose or change its meaning.
void CheckIsPlain(const std::string& source, const ConventionRow& convention,
                  const TensorEntry& entry) {
  if (EndsWithAny(entry.name, convention.refused)) RefuseMeaning(source, entry.name);
  if (!IsNarrowFloat(entry.dtype)) return;
  if (!MayHoldCodes(entry.dtype) && !HoldsExponents(entry.dtype)) {
    throw Unsupported(fmt::format("{}: '{}' is not supported, no convention has codes of {}",
                                  source, entry.name, Info(entry.dtype).name));
  }
  throw InvalidArgument(
      fmt::format("{}: '{}' ({}) must be a part of a weight, '{}' has none of its name", source,
                  entry.name, Info(entry.dtype).name, convention.name));
}

class Grouping {
 public:
  Grouping(const Checkpoint& checkpoint, const ConventionRow& convention,
           const std::string& evidence)
      : checkpoint_(checkpoint),
        convention_(convention),
        evidence_(evidence),
        by_shard_(checkpoint.shards().size()) {
    const json config = ReadCompanion(checkpoint, kConfigFile);
    const json quantization = QuantizationOf(config);
    block_ = ConfiguredBlock(quantization);
    if (convention.refused_key != nullptr) {
      CheckMeaning(Source(), quantization, convention.refused_key);
    }
    for (const TensorLocation& location : checkpoint.tensors()) {
      const auto shard = static_cast<std::size_t>(location.shard - checkpoint.shards().data());
      found_.emplace(location.tensor->name, Found{location.tensor, shard});
    }
  }

  std::vector<std::vector<StoredTensor>> Run() {
    if (convention_.describe != nullptr) {
      for (const WeightDescription& weight : convention_.describe(checkpoint_)) {
        TakeDescribed(weight);
      }
    }
    for (const WeightNames& names : convention_.weights) {
      for (const TensorLocation& location : checkpoint_.tensors()) TakeWeight(names, location);
    }
    for (const TensorLocation& location : checkpoint_.tensors()) AddRest(location);
    return std::move(by_shard_);
  }

 private:
  struct Found {
    const StoredTensor* tensor;
    std::size_t shard;
    bool taken = false;
  };

  std::string Source() const { return "read: " + checkpoint_.path().string(); }

  Found* Find(const std::string& name) {
    const auto at = found_.find(name);
    return at == found_.end() || at->second.taken || !at->second.tensor->IsPlain() ? nullptr
                                                                                   : &at->second;
  }

  void TakeWeight(const WeightNames& names, const TensorLocation& location) {
    const std::string& name = location.tensor->name;
    if (!name.ends_with(names.codes)) return;
    Found* codes = Find(name);
    if (codes == nullptr || !MayHoldCodes(codes->tensor->entries.front().dtype)) return;
    const std::string stem = name.substr(0, name.size() - names.codes.size());
    Found* scale = Find(stem + std::string(names.scale));
    Found* global = names.global.empty() ? nullptr : Find(stem + std::string(names.global));
    if (scale == nullptr || (global == nullptr && !names.global.empty())) return;
    Add(stem + std::string(names.plain), names, {codes, scale, global},
        {.block = block_, .for_all_weights = true});
  }

  /// Adds a weight. `parts` are codes, scale and the scale of the whole tensor; the last, or the
  /// last two, may be null.
  void Add(std::string name, const WeightNames& names, const std::array<Found*, 3>& parts,
           const WeightHints& hints) {
    StoredTensor weight{.name = std::move(name)};
    for (Found* part : parts) {
      if (part == nullptr) continue;
      weight.entries.push_back(part->tensor->entries.front());
      weight.shards.push_back(part->shard);
      part->taken = true;
    }
    weight.foreign =
        parts[1] == nullptr
            ? UnscaledWeight(weight.entries[0])
            : DescribeWeight(Source(), names, weight.entries[0], weight.entries[1],
                             parts[2] == nullptr ? nullptr : &weight.entries[2], hints);
    weight.foreign->input_scale = InputScaleOf(weight.name);
    by_shard_[parts[0]->shard].push_back(std::move(weight));
  }

  /// Returns the name of the tensor with one scale for a weight's inputs; an empty text if there is
  /// none.
  std::string InputScaleOf(const std::string& weight) {
    if (!weight.ends_with(kPlainWeight)) return "";
    for (const std::string_view suffix : convention_.input_scales) {
      std::string name = std::string(StemOf(weight)).append(suffix);
      const Found* scale = Find(name);
      if (scale == nullptr) continue;
      const TensorEntry& entry = scale->tensor->entries.front();
      if (WideFloat(entry.dtype) && FlattenShape(entry.shape).Size() == 1) return name;
    }
    return "";
  }

  Found* PartOf(const WeightDescription& weight, const std::string& name) {
    Found* part = Find(name);
    if (part != nullptr) return part;
    throw InvalidArgument(fmt::format("{}: '{}' needs '{}', which is missing", Source(),
                                      Shortened(weight.plain), Shortened(name)));
  }

  void TakeDescribed(const WeightDescription& weight) {
    Found* codes = PartOf(weight, weight.codes);
    Found* scale = weight.scale.empty() ? nullptr : PartOf(weight, weight.scale);
    Found* global = weight.global.empty() ? nullptr : PartOf(weight, weight.global);
    const FileDType dtype = codes->tensor->entries.front().dtype;
    if (std::ranges::find(weight.code_types, dtype) == weight.code_types.end()) {
      std::string types;
      for (const FileDType type : weight.code_types) {
        types += fmt::format("{}{}", types.empty() ? "" : " or ", Info(type).name);
      }
      throw InvalidArgument(fmt::format("{}: '{}' must be {}, as its format is described, got {}",
                                        Source(), weight.codes, types, Info(dtype).name));
    }
    WeightHints hints{.block = weight.block,
                      .swizzled = weight.swizzled,
                      .high_half_first = weight.high_half_first,
                      .needs_global = false};
    Add(weight.plain,
        {.codes = "", .scale = "", .plain = "", .global_scale = GlobalScale::kMultiplies},
        {codes, scale, global}, hints);
    accessories_.insert(weight.accessories.begin(), weight.accessories.end());
  }

  void AddRest(const TensorLocation& location) {
    const Found& rest = found_.at(location.tensor->name);
    if (rest.taken) return;
    StoredTensor tensor = *rest.tensor;
    const TensorEntry& entry = tensor.entries.front();
    CheckIsWhole(entry);
    tensor.accessory = accessories_.contains(tensor.name) ||
                       IsAccessory(convention_, tensor.name) || IsZeroPoint(location);
    if (!tensor.accessory && tensor.IsPlain()) CheckIsPlain(Source(), convention_, entry);
    by_shard_[rest.shard].push_back(std::move(tensor));
  }

  /// Returns whether a tensor contains zero points of float codes; float models do not have them.
  /// Rejects zero points that are not zero, because codes are decoded without them.
  bool IsZeroPoint(const TensorLocation& location) const {
    const StoredTensor& tensor = *location.tensor;
    if (!tensor.IsPlain() || !tensor.name.ends_with(kZeroPoint)) return false;
    constexpr std::uint64_t kPieceBytes = 65536;
    std::vector<std::byte> piece;
    for (std::uint64_t begin = 0; begin < tensor.Bytes(); begin += piece.size()) {
      piece.resize(std::min(kPieceBytes, tensor.Bytes() - begin));
      HomeOf(location, 0).file.Read(tensor.entries.front(), begin, piece);
      if (std::ranges::any_of(piece, [](std::byte byte) { return byte != std::byte{0}; })) {
        RefuseMeaning(Source(), tensor.name);
      }
    }
    return true;
  }

  /// Rejects a part of a weight if its other parts are missing: it would be copied unchanged.
  void CheckIsWhole(const TensorEntry& entry) const {
    const WeightNames* names = FindPart(convention_, entry);
    if (names == nullptr) return;
    if (IsCodes(*names, entry)) {
      const std::string stem = entry.name.substr(0, entry.name.size() - names->codes.size());
      throw InvalidArgument(
          fmt::format("{}: '{}' holds codes and needs its scale '{}{}', which is missing{}",
                      Source(), entry.name, stem, names->scale, Reading()));
    }
    throw InvalidArgument(
        fmt::format("{}: '{}' is a scale and needs its codes, which are missing{}", Source(),
                    entry.name, Reading()));
  }

  /// Returns, for messages, which convention is read and why; an empty text if the caller knows.
  std::string Reading() const {
    if (evidence_.empty()) return "";
    return fmt::format("; it is read as '{}' ({}), --from (in Python, from_=) names another",
                       convention_.name, evidence_);
  }

  const Checkpoint& checkpoint_;
  const ConventionRow& convention_;
  const std::string& evidence_;
  std::optional<BlockShape> block_;
  std::unordered_map<std::string_view, Found> found_;
  std::unordered_set<std::string> accessories_;  // names from descriptions
  std::vector<std::vector<StoredTensor>> by_shard_;
};

}  // namespace

const TensorEntry* FindIntegerCodes(const Checkpoint& checkpoint, const ConventionRow& convention) {
  for (const WeightNames& names : convention.weights) {
    for (const TensorLocation& location : checkpoint.tensors()) {
      const TensorEntry& codes = location.tensor->entries.front();
      if (!codes.name.ends_with(names.codes) || !MayHoldIntegers(codes.dtype)) continue;
      const std::string stem = codes.name.substr(0, codes.name.size() - names.codes.size());
      const TensorLocation scale = checkpoint.Find(stem + std::string(names.scale));
      if (scale.tensor == nullptr || !scale.tensor->IsPlain()) continue;
      if (WideFloat(scale.tensor->entries.front().dtype)) return &codes;
    }
  }
  return nullptr;
}

void ReadConvention(Checkpoint& checkpoint, const ConventionRow& convention,
                    const std::string& evidence) {
  if (const TensorEntry* codes = FindIntegerCodes(checkpoint, convention)) {
    throw Unsupported(fmt::format("read: {}: '{}' ({}) is not supported, its codes are integers",
                                  checkpoint.path().string(), codes->name,
                                  Info(codes->dtype).name));
  }
  checkpoint.Regroup(Grouping(checkpoint, convention, evidence).Run());
}

std::optional<BlockShape> StatedBlock(const Checkpoint& checkpoint) {
  const json quantization = QuantizationOf(ReadCompanion(checkpoint, kConfigFile));
  if (ValueAt(quantization, {kBlockKey}).is_null()) return std::nullopt;
  return ConfiguredBlock(quantization);
}

void CheckCopy(const std::string& operation, const ConventionRow& convention,
               const TensorEntry& entry) {
  if (FindPart(convention, entry) != nullptr) {
    throw InvalidArgument(fmt::format(
        "{}: '{}' ({}) must have another name to be copied, in '{}' it is a part of a weight",
        operation, entry.name, Info(entry.dtype).name, convention.name));
  }
  if (IsAccessory(convention, entry.name)) return;
  if (entry.name.ends_with(kZeroPoint)) RefuseMeaning(operation, entry.name);
  CheckIsPlain(operation, convention, entry);
}

DType ModelDType(const Checkpoint& checkpoint) {
  const json config = ReadCompanion(checkpoint, kConfigFile);
  for (const json& model : {config, ValueAt(config, {kTextModelKey})}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const auto text = TextAt(model, {key});
      for (std::size_t i = 0; text && i < kFloatTypeCount; ++i) {
        if (*text == DTypeName(static_cast<DType>(i))) return static_cast<DType>(i);
      }
    }
  }
  return DType::kBFloat16;
}

}  // namespace narrowfloat::io
