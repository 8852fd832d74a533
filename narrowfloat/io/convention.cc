// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/convention.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

constexpr std::string_view kKeyPrefix = "narrowfloat.";
constexpr int kRecordDepth = 2;  // the object, its shape

FileDType BufferFileDType(const QuantSpec& spec, const BufferPlan& buffer) {
  switch (buffer.role) {
    case Role::kRowwiseData:
    case Role::kColumnwiseData:
      return FileDTypeOfCodes(*spec.scheme);
    case Role::kRowwiseScaleInv:
    case Role::kColumnwiseScaleInv:
      return FileDTypeOfScales(spec.scheme->layout.scale_type);
    default:
      return FileDTypeOf(buffer.dtype);
  }
}

TensorEntry EntryOf(const QuantizedRecord& record, const BufferPlan& buffer) {
  return {.name = BufferName(record.name, buffer.role),
          .dtype = BufferFileDType(record.spec, buffer),
          .shape = buffer.shape};
}

/// Returns the empty tensor with the name of the quantized tensor itself.
TensorEntry MarkOf(const QuantizedRecord& record) {
  return {.name = record.name, .dtype = FileDTypeOf(record.dtype), .shape = {0}};
}

std::string PrintRecord(const QuantizedRecord& record) {
  const nlohmann::ordered_json object = {{"spec", PrintQuantSpec(record.spec)},
                                         {"shape", record.shape},
                                         {"dtype", DTypeName(record.dtype)}};
  return object.dump();
}

Shape ParseShape(const std::string& source, const json& value) {
  if (!value.is_array()) {
    throw InvalidArgument(
        fmt::format("{}: shape must be a list, got {}", source, ShortenedJson(value)));
  }
  Shape shape;
  for (const json& item : value) {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > kMax) {
      throw InvalidArgument(fmt::format("{}: shape must hold integers from 0 to 2^63 - 1, got {}",
                                        source, ShortenedJson(item)));
    }
    if (shape.size() == kMaxRank) {
      throw InvalidArgument(
          fmt::format("{}: shape must have at most {} dimensions, got more", source, kMaxRank));
    }
    shape.push_back(item.get<std::int64_t>());
  }
  return shape;
}

DType ParseDType(const std::string& source, const json& value) {
  std::string names;
  for (std::size_t i = 0; i < kFloatTypeCount; ++i) {
    const std::string_view name = DTypeName(static_cast<DType>(i));
    if (value == name) return static_cast<DType>(i);
    names += fmt::format("{}{}", i == 0 ? "" : ", ", name);
  }
  throw InvalidArgument(
      fmt::format("{}: dtype must be one of {}, got {}", source, names, ShortenedJson(value)));
}

QuantizedRecord ParseRecord(const std::string& source, const std::string& name,
                            const std::string& text) {
  const json object = ParseStrictJson(source, text, kRecordDepth);
  for (const char* key : {"spec", "shape", "dtype"}) {
    if (!object.is_object() || object.size() != 3 || !object.contains(key)) {
      throw InvalidArgument(fmt::format("{}: must be an object of spec, shape and dtype, got {}",
                                        source, Shortened(text)));
    }
  }
  const json& spec = object["spec"];
  if (!spec.is_string() || spec.get_ref<const std::string&>().size() > kMaxNameBytes) {
    throw InvalidArgument(fmt::format("{}: spec must be a string of at most {} bytes, got {}",
                                      source, kMaxNameBytes, ShortenedJson(spec)));
  }
  try {
    return {name, ParseQuantSpec(spec.get_ref<const std::string&>()),
            ParseShape(source, object["shape"]), ParseDType(source, object["dtype"])};
  } catch (const InvalidArgument& error) {
    if (std::string_view(error.what()).starts_with(source)) throw;
    throw InvalidArgument(fmt::format("{}: {}", source, error.what()));
  }
}

/// The entries of a checkpoint's files that do not belong to a tensor yet.
class EntryPool {
 public:
  explicit EntryPool(std::span<const FileHeader> files) : files_(files), by_name_(files.size()) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      for (const TensorEntry& entry : files[i].header->tensors) {
        by_name_[i].emplace(entry.name, &entry);
      }
    }
  }

  struct Found {
    std::size_t file;
    const TensorEntry* entry;
  };

  /// Finds an entry by name, in `file` first.
  std::optional<Found> Find(std::string_view name, std::size_t file) const {
    for (std::size_t i = 0; i < by_name_.size(); ++i) {
      const std::size_t at = i == 0 ? file : i <= file ? i - 1 : i;
      const auto found = by_name_[at].find(name);
      if (found != by_name_[at].end()) return Found{at, found->second};
    }
    return std::nullopt;
  }

  void Take(const Found& found) {
    by_name_[found.file].erase(found.entry->name);
    if (files_.size() > 1) taken_.insert(found.entry->name);
  }

  /// Adds the remaining entries as plain tensors. Errors: InvalidArgument for a repeated buffer.
  void AddRest(std::vector<std::vector<StoredTensor>>& tensors) const {
    for (std::size_t i = 0; i < by_name_.size(); ++i) {
      // Reserves memory, since a tensor needs half a kilobyte.
      tensors[i].reserve(tensors[i].size() + by_name_[i].size());
      for (const auto& [name, entry] : by_name_[i]) {
        if (taken_.contains(name)) {
          throw InvalidArgument(fmt::format("{}: '{}' must be in one file, another has it too",
                                            files_[i].source, name));
        }
        tensors[i].push_back({.name = std::string(name), .entries = {*entry}});
      }
    }
  }

 private:
  std::span<const FileHeader> files_;
  std::vector<std::unordered_map<std::string_view, const TensorEntry*>> by_name_;
  std::unordered_set<std::string_view> taken_;  // only used for several files
};

/// Removes the record's buffers and its mark from `pool` and returns them as a tensor.
StoredTensor TakeQuantized(const std::string& source, QuantizedRecord record, std::size_t file,
                           EntryPool& pool) {
  StoredTensor tensor;
  try {
    tensor = AsStored(std::move(record));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", source, error.what()));
  }
  for (TensorEntry& planned : tensor.entries) {
    const auto found = pool.Find(planned.name, file);
    if (!found) {
      throw InvalidArgument(fmt::format("{}: its buffer '{}' is missing", source, planned.name));
    }
    const TensorEntry& entry = *found->entry;
    if (entry.dtype != planned.dtype || entry.shape != planned.shape) {
      throw InvalidArgument(fmt::format("{}: its buffer '{}' must be {} {} by the plan, got {} {}",
                                        source, planned.name, Info(planned.dtype).name,
                                        ShapeText(planned.shape), Info(entry.dtype).name,
                                        ShapeText(entry.shape)));
    }
    planned = entry;
    tensor.shards.push_back(found->file);
    pool.Take(*found);
  }
  const auto mark = pool.Find(tensor.name, tensor.shards.front());
  if (mark && mark->entry->shape == Shape{0}) pool.Take(*mark);
  return tensor;
}

}  // namespace

std::vector<BufferPlan> StoredBuffers(const QuantSpec& spec, const Shape& shape) {
  std::vector<BufferPlan> plan = PlanQuantize(spec, shape);
  std::erase_if(plan, [](const BufferPlan& buffer) { return buffer.storage != buffer.role; });
  return plan;
}

std::string BufferName(std::string_view tensor, Role role) {
  return fmt::format("{}.{}", tensor, RoleName(role));
}

StoredTensor AsStored(QuantizedRecord record) {
  StoredTensor tensor{.name = record.name};
  tensor.plan = StoredBuffers(record.spec, record.shape);
  for (const BufferPlan& buffer : tensor.plan) tensor.entries.push_back(EntryOf(record, buffer));
  tensor.quantized = std::move(record);
  return tensor;
}

std::uint64_t StoredTensor::Bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorEntry& entry : entries) bytes += entry.Bytes();
  return bytes;
}

std::string FormatText(const StoredTensor& tensor) {
  if (tensor.foreign) return FormatText(*tensor.foreign);
  return tensor.quantized ? PrintQuantSpec(tensor.quantized->spec)
                          : std::string(Info(tensor.entries.front().dtype).name);
}

void FileContents::AddPlain(std::string name, FileDType dtype, Shape shape) {
  tensors.push_back({.name = std::move(name), .dtype = dtype, .shape = std::move(shape)});
}

void FileContents::AddQuantized(const QuantizedRecord& record) {
  for (TensorEntry& entry : AsStored(record).entries) tensors.push_back(std::move(entry));
  tensors.push_back(MarkOf(record));
  metadata[std::string(kKeyPrefix) + record.name] = PrintRecord(record);
}

void FileContents::AddCopy(const StoredTensor& tensor) {
  if (tensor.quantized) {
    AddQuantized(*tensor.quantized);
  } else {
    const TensorEntry& entry = tensor.entries.front();
    AddPlain(entry.name, entry.dtype, entry.shape);
  }
}

std::vector<StoredTensor> GroupTensors(const std::string& source, const Header& header) {
  const FileHeader file{source, &header};
  return std::move(GroupTensors(std::span(&file, 1)).front());
}

std::vector<std::vector<StoredTensor>> GroupTensors(std::span<const FileHeader> files) {
  EntryPool pool(files);
  std::vector<std::vector<StoredTensor>> tensors(files.size());
  std::unordered_map<std::string_view, std::string_view> records;  // of the previous files
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const auto& [key, text] : files[i].header->metadata) {
      if (!key.starts_with(kKeyPrefix)) continue;
      const std::string source = fmt::format("{}: metadata '{}'", files[i].source, Shortened(key));
      const auto [known, fresh] = records.emplace(key, text);
      if (!fresh && known->second != text) {
        throw InvalidArgument(
            fmt::format("{}: must be as in the other files, got {}", source, Shortened(text)));
      }
      if (!fresh) continue;
      QuantizedRecord record = ParseRecord(source, key.substr(kKeyPrefix.size()), text);
      StoredTensor tensor = TakeQuantized(source, std::move(record), i, pool);
      const std::size_t home = tensor.shards.front();
      const bool whole = std::ranges::all_of(tensor.shards, [&](auto at) { return at == home; });
      if (whole) tensor.shards.clear();
      tensors[home].push_back(std::move(tensor));
    }
  }
  pool.AddRest(tensors);
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::ranges::sort(tensors[i], {}, &StoredTensor::name);
    const auto repeated = std::ranges::adjacent_find(tensors[i], {}, &StoredTensor::name);
    if (repeated == tensors[i].end()) continue;
    throw InvalidArgument(fmt::format("{}: '{}' must be a tensor or a quantized one, it is both",
                                      files[i].source, repeated->name));
  }
  return tensors;
}

Metadata WithoutOwnKeys(const Metadata& metadata) {
  Metadata foreign = metadata;
  std::erase_if(foreign, [](const auto& item) { return item.first.starts_with(kKeyPrefix); });
  return foreign;
}

}  // namespace narrowfloat::io
