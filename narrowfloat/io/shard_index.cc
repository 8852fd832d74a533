// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

constexpr int kDepth = 8;  // the reference uses 2; other keys of "metadata" may nest
constexpr const char* kWeightMap = "weight_map";
constexpr const char* kMetadata = "metadata";
constexpr const char* kTotalSize = "total_size";

/// Rejects a number of things beyond a bound. `got` is the number, or "more".
void CheckAtMost(const std::string& source, std::size_t most, std::string_view things,
                 std::size_t count, std::string_view got) {
  if (count <= most) return;
  throw InvalidArgument(
      fmt::format("{}: weight_map must name at most {} {}, got {}", source, most, things, got));
}

/// Rejects a text beside weight_map beyond its bound.
void CheckOther(const std::string& source, std::size_t bytes) {
  if (bytes <= kMaxIndexOther) return;
  throw InvalidArgument(
      fmt::format("{}: an index must have at most {} bytes beside weight_map, got more", source,
                  kMaxIndexOther));
}

/// Collects an index while its text is parsed, without a tree of JSON values: a tree would take
/// several times the memory of the text.
class IndexReader final : public StrictJsonEvents {
 public:
  explicit IndexReader(const std::string& source) : StrictJsonEvents(source, kDepth) {}

  /// Returns the names of the tensors by file. Errors: InvalidArgument if the index names no
  /// tensor, or one tensor twice.
  std::map<std::string, std::vector<std::string>> TakeTensors() {
    if (!has_map_) RefuseIndex();
    if (count_ == 0) {
      throw InvalidArgument(
          fmt::format("{}: weight_map must name at least one tensor, got none", source()));
    }
    std::vector<std::string_view> names;
    names.reserve(count_);
    for (auto& [file, of_file] : tensors_) {
      std::ranges::sort(of_file);
      names.insert(names.end(), of_file.begin(), of_file.end());
    }
    std::ranges::sort(names);
    const auto repeated = std::ranges::adjacent_find(names);
    if (repeated != names.end()) RefuseRepeated(*repeated);
    return std::move(tensors_);
  }

  /// Returns the JSON text of the index without weight_map.
  const std::string& other() const { return other_; }

 private:
  void OnName(std::string& name) override {
    if (Depth() == 1) in_map_ = name == kWeightMap;
    if (!in_map_) {
      AddOther(json(name).dump());
      other_ += ':';
    } else if (Depth() == 2) {
      name_ = name;
    } else if (has_map_) {
      RefuseRepeated(name);
    }
  }

  void OnText(std::string& text) override {
    if (in_map_ && Depth() == 2) {
      AddTensor(text);
    } else {
      OnOther(json(text));
    }
  }

  void OnOther(const json& value) override {
    if (Depth() == 0 || (in_map_ && Depth() == 1)) RefuseIndex();
    if (in_map_) RefuseFile(value.type_name());
    AddOther(value.dump());
  }

  void OnOpen(bool is_array) override {
    if (is_array && (Depth() == 0 || (in_map_ && Depth() == 1))) RefuseIndex();
    if (!in_map_) return AddOther(is_array ? "[" : "{");
    if (Depth() == 2) RefuseFile(is_array ? "array" : "object");
    has_map_ = true;
  }

  void OnClose() override {
    if (in_map_ && Depth() == 1) return;
    other_ += '}';
  }
  void OnListEnd() override { other_ += ']'; }

  void AddTensor(const std::string& file) {
    auto of_file = tensors_.find(file);
    if (of_file == tensors_.end()) {
      CheckFileName(file);
      of_file = tensors_.try_emplace(file).first;
      CheckAtMost(source(), kMaxIndexFiles, "files", tensors_.size(), "more");
    }
    of_file->second.push_back(name_);  // a copy has no more bytes than it needs
    CheckAtMost(source(), kMaxIndexTensors, "tensors", ++count_, "more");
  }

  /// Rejects a file name that points outside the folder, or into a folder below it.
  void CheckFileName(const std::string& file) const {
    if (file.find('/') == std::string::npos && file.find('\0') == std::string::npos &&
        file.ends_with(kFileSuffix)) {
      return;
    }
    throw InvalidArgument(
        fmt::format("{}: weight_map must name *{} files of its own folder, got '{}'", source(),
                    kFileSuffix, Shortened(file)));
  }

  /// Adds a name, a value or the start of one to the text beside weight_map.
  void AddOther(std::string_view part) {
    constexpr std::string_view kBeforeFirst = "{[:";
    if (!other_.empty() && kBeforeFirst.find(other_.back()) == std::string_view::npos)
      other_ += ',';
    other_ += part;
    CheckOther(source(), other_.size());
  }

  [[noreturn]] void RefuseIndex() const {
    throw InvalidArgument(
        fmt::format("{}: an index needs an object weight_map, got none", source()));
  }
  [[noreturn]] void RefuseFile(const char* type) const {
    throw InvalidArgument(fmt::format("{}: weight_map must map strings to strings, '{}' is {}",
                                      source(), Shortened(name_), type));
  }
  [[noreturn]] void RefuseRepeated(std::string_view name) const {
    throw InvalidArgument(
        fmt::format("{}: names must be unique, got '{}' twice", source(), Shortened(name)));
  }

  std::map<std::string, std::vector<std::string>> tensors_;
  std::size_t count_ = 0;  // of tensors
  std::string other_;
  bool in_map_ = false, has_map_ = false;
  std::string name_;  // current name of weight_map
};

}  // namespace

std::string IndexSource(const std::filesystem::path& path) {
  return "index: " + path.string();
}

ShardIndex ParseIndex(const std::string& source, std::string_view text) {
  IndexReader reader(source);
  ReadStrictJson(text, kMaxIndexOther, reader);
  ShardIndex index;
  index.tensors = reader.TakeTensors();
  json other = ParseStrictJson(source, reader.other(), kDepth);
  if (other.contains(kMetadata) && other[kMetadata].is_object()) {
    other[kMetadata].erase(kTotalSize);
    index.other_metadata = other[kMetadata].dump();
  }
  return index;
}

std::string PrintIndex(const std::string& source, const ShardIndex& index) {
  std::vector<std::pair<std::string_view, std::string_view>> files;  // of the tensors
  for (const auto& [file, of_file] : index.tensors) {
    for (const std::string& name : of_file) files.emplace_back(name, file);
  }
  const auto tensors = files.size();
  CheckAtMost(source, kMaxIndexTensors, "tensors", tensors, fmt::to_string(tensors));
  json other = {{kMetadata, json::parse(index.other_metadata)}};
  other[kMetadata][kTotalSize] = index.total_size;
  CheckOther(source, other.dump().size());
  std::ranges::sort(files);
  std::string text = other.dump(2);
  text.resize(text.rfind('\n'));  // the end of the outermost object
  text += fmt::format(",\n  \"{}\": {{", kWeightMap);
  for (std::size_t i = 0; i < files.size(); ++i) {
    text += fmt::format("{}\n    {}: {}", i == 0 ? "" : ",", json(files[i].first).dump(),
                        json(files[i].second).dump());
  }
  text += "\n  }\n}\n";
  if (text.size() > kMaxIndexBytes) {
    throw InvalidArgument(fmt::format("{}: an index must have at most {} bytes, got {}", source,
                                      kMaxIndexBytes, text.size()));
  }
  return text;
}

}  // namespace narrowfloat::io
