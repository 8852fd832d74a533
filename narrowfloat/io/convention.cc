// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/convention.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
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

std::string PrintRecord(const QuantizedRecord& record) {
  const nlohmann::ordered_json object = {{"spec", PrintQuantSpec(record.spec)},
                                         {"shape", record.shape},
                                         {"dtype", DTypeName(record.dtype)}};
  return object.dump();
}

Shape ParseShape(const std::string& source, const json& value) {
  if (!value.is_array()) {
    throw InvalidArgument(fmt::format("{}: shape must be a list, got {}", source, value.dump()));
  }
  Shape shape;
  for (const json& item : value) {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > kMax) {
      throw InvalidArgument(fmt::format("{}: shape must hold integers from 0 to 2^63 - 1, got {}",
                                        source, item.dump()));
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
      fmt::format("{}: dtype must be one of {}, got {}", source, names, value.dump()));
}

QuantizedRecord ParseRecord(const std::string& source, const std::string& name,
                            const std::string& text) {
  const json object = ParseStrictJson(source, text, kRecordDepth);
  for (const char* key : {"spec", "shape", "dtype"}) {
    if (!object.is_object() || object.size() != 3 || !object.contains(key)) {
      throw InvalidArgument(
          fmt::format("{}: must be an object of spec, shape and dtype, got {}", source, text));
    }
  }
  const json& spec = object["spec"];
  if (!spec.is_string()) {
    throw InvalidArgument(fmt::format("{}: spec must be a string, got {}", source, spec.dump()));
  }
  try {
    return {name, ParseQuantSpec(spec.get_ref<const std::string&>()),
            ParseShape(source, object["shape"]), ParseDType(source, object["dtype"])};
  } catch (const InvalidArgument& error) {
    if (std::string_view(error.what()).starts_with(source)) throw;
    throw InvalidArgument(fmt::format("{}: {}", source, error.what()));
  }
}

using EntriesByName = std::unordered_map<std::string_view, const TensorEntry*>;

/// Takes the record's buffers out of `entries`.
StoredTensor TakeQuantized(const std::string& source, QuantizedRecord record,
                           EntriesByName& entries) {
  StoredTensor tensor{.name = record.name};
  try {
    tensor.plan = StoredBuffers(record.spec, record.shape);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", source, error.what()));
  }
  for (const BufferPlan& buffer : tensor.plan) {
    const TensorEntry planned = EntryOf(record, buffer);
    const auto found = entries.find(planned.name);
    if (found == entries.end()) {
      throw InvalidArgument(fmt::format("{}: its buffer '{}' is missing", source, planned.name));
    }
    const TensorEntry& entry = *found->second;
    if (entry.dtype != planned.dtype || entry.shape != planned.shape) {
      throw InvalidArgument(fmt::format("{}: its buffer '{}' must be {} {} by the plan, got {} {}",
                                        source, planned.name, Info(planned.dtype).name,
                                        ShapeText(planned.shape), Info(entry.dtype).name,
                                        ShapeText(entry.shape)));
    }
    tensor.entries.push_back(entry);
    entries.erase(found);
  }
  tensor.quantized = std::move(record);
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
  for (const BufferPlan& buffer : StoredBuffers(record.spec, record.shape)) {
    tensors.push_back(EntryOf(record, buffer));
  }
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
  EntriesByName entries;
  for (const TensorEntry& entry : header.tensors) entries.emplace(entry.name, &entry);
  std::vector<StoredTensor> tensors;
  tensors.reserve(header.tensors.size());  // a tensor takes half a kilobyte
  for (const auto& [key, text] : header.metadata) {
    if (!key.starts_with(kKeyPrefix)) continue;
    const std::string record_source = fmt::format("{}: metadata '{}'", source, key);
    QuantizedRecord record = ParseRecord(record_source, key.substr(kKeyPrefix.size()), text);
    tensors.push_back(TakeQuantized(record_source, std::move(record), entries));
  }
  for (const auto& [name, entry] : entries) {
    tensors.push_back({.name = std::string(name), .entries = {*entry}});
  }
  std::ranges::sort(tensors, {}, &StoredTensor::name);
  const auto repeated = std::ranges::adjacent_find(tensors, {}, &StoredTensor::name);
  if (repeated != tensors.end()) {
    throw InvalidArgument(
        fmt::format("{}: '{}' is both a tensor and a quantized one", source, repeated->name));
  }
  return tensors;
}

Metadata ForeignMetadata(const Metadata& metadata) {
  Metadata foreign = metadata;
  std::erase_if(foreign, [](const auto& item) { return item.first.starts_with(kKeyPrefix); });
  return foreign;
}

}  // namespace narrowfloat::io
