// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/io/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <utility>

#include "narrowfloat/io/strict_json.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::io {
namespace {

using nlohmann::json;

constexpr const char* kMetadataKey = "__metadata__";
constexpr int kDepth = 3;                                     // header, entry, its lists
constexpr std::size_t kMaxTokenBytes = std::size_t{8} << 20;  // torchao lists all names in one text
constexpr std::uint64_t kPadding = 8;

template <class... Args>
[[noreturn]] void Refuse(const std::string& source, fmt::format_string<Args...> rule,
                         Args&&... args) {
  throw InvalidArgument(
      fmt::format("{}: {}", source, fmt::format(rule, std::forward<Args>(args)...)));
}

constexpr std::uint64_t kLargestNumber = std::numeric_limits<std::int64_t>::max();

/// Counts the bytes of text that a header needs in memory.
class TextBudget {
 public:
  explicit TextBudget(const std::string& source) : source_(source) {}

  /// Adds bytes. Errors: InvalidArgument if the sum exceeds kMaxTextBytes.
  void Add(std::size_t bytes) {
    if (bytes > kMaxTextBytes - used_) {
      Refuse(source_, "names, shapes and metadata must have at most {} bytes, got more",
             kMaxTextBytes);
    }
    used_ += bytes;
  }

 private:
  const std::string& source_;
  std::uint64_t used_ = 0;
};

void CheckName(const std::string& source, const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    Refuse(source, "a name must have at most {} bytes, got {}", kMaxNameBytes, name.size());
  }
}

void CheckCount(const std::string& source, std::string_view things, std::size_t count) {
  if (count > kMaxTensors) {
    Refuse(source, "a file must have at most {} {}, got more", kMaxTensors, things);
  }
}

void CheckRank(const std::string& source, const std::string& name, std::size_t rank) {
  if (rank > kMaxRank) {
    Refuse(source, "'{}' must have at most {} dimensions, got more", name, kMaxRank);
  }
}

void CheckNamesStandOnce(const std::string& source, const std::vector<TensorEntry>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& entry : tensors) names.push_back(entry.name);
  std::ranges::sort(names);
  const auto repeated = std::ranges::adjacent_find(names);
  if (repeated != names.end()) Refuse(source, "names must be unique, got '{}' twice", *repeated);
}

void CheckSpan(const std::string& source, const TensorEntry& entry) {
  if (entry.end < entry.begin) {
    Refuse(source, "'{}' data_offsets must not fall, got {} to {}", entry.name, entry.begin,
           entry.end);
  }
  const std::uint64_t bytes = TensorBytes(source, entry);
  if (bytes != entry.Bytes()) {
    Refuse(source, "'{}' of {} {} takes {} bytes, its data_offsets span {}", entry.name,
           Info(entry.dtype).name, ShapeText(entry.shape), bytes, entry.Bytes());
  }
}

/// Collects a header while its text is parsed, without a tree of JSON values: a tree would take up
/// to forty times the memory of the text.
class HeaderReader final : public StrictJsonEvents {
 public:
  explicit HeaderReader(const std::string& source)
      : StrictJsonEvents(source, kDepth), budget_(source) {}

  Header Take() { return std::move(header_); }

 private:
  enum Field : std::size_t { kDType, kShape, kOffsets, kFieldCount };
  static constexpr const char* kFields[kFieldCount] = {"dtype", "shape", "data_offsets"};

  bool InMetadata() const { return entry_.name == kMetadataKey; }

  void OnName(std::string& name) override {
    if (Depth() == 1) {
      BeginMember(name);
    } else if (InMetadata()) {
      budget_.Add(name.size());
      key_ = std::move(name);
    } else {
      BeginField(name);
    }
  }

  void BeginMember(std::string& name) {
    CheckName(source(), name);
    budget_.Add(name.size());
    entry_ = {.name = std::move(name)};
    seen_ = {};
    if (!InMetadata()) return;
    if (has_metadata_) RefuseRepeated(entry_.name);
    has_metadata_ = true;
  }

  void BeginField(const std::string& name) {
    const auto found = std::ranges::find(kFields, name);
    if (found == std::end(kFields)) {
      CheckName(source(), name);
      Refuse(source(), "'{}' must have dtype, shape and data_offsets only, got '{}'", entry_.name,
             name);
    }
    field_ = static_cast<Field>(found - std::begin(kFields));
    if (seen_[field_]) RefuseRepeated(kFields[field_]);
    seen_[field_] = true;
    count_ = 0;
  }

  [[noreturn]] void RefuseRepeated(const std::string& name) {
    Refuse(source(), "names must be unique, got '{}' twice", name);
  }

  void OnOpen(bool is_array) override {
    const char* type = is_array ? "array" : "object";
    if (Depth() == 1 && is_array) RefuseMember(type);
    if (Depth() == 2 && InMetadata()) RefuseText(type);
    if (Depth() == 2 && field_ == kDType) RefuseDType(type);
    if (Depth() == 2 && !is_array) RefuseList(type);
  }

  void OnClose() override {
    if (Depth() != 1 || InMetadata()) return;
    for (std::size_t i = 0; i < kFieldCount; ++i) {
      if (!seen_[i]) Refuse(source(), "'{}' needs a {}, got none", entry_.name, kFields[i]);
    }
    CheckSpan(source(), entry_);
    header_.tensors.push_back(std::move(entry_));
    CheckCount(source(), "tensors", header_.tensors.size());
  }

  void OnText(std::string& text) override {
    if (Depth() == 2 && InMetadata()) {
      AddMetadata(text);
    } else if (Depth() == 2 && field_ == kDType) {
      const auto known = FindFileDType(text);
      if (!known) RefuseDType(ShortenedJson(json(text)));
      entry_.dtype = *known;
    } else {
      OnOther(json(std::move(text)));
    }
  }

  void AddMetadata(std::string& text) {
    budget_.Add(text.size());
    const auto [at, fresh] = header_.metadata.emplace(std::move(key_), std::move(text));
    if (!fresh) RefuseRepeated(Shortened(at->first));
    CheckCount(source(), "keys of metadata", header_.metadata.size());
  }

  /// Handles a number or a constant, or rejects a value in a wrong position.
  void OnOther(const json& value) override {
    if (Depth() == 1) RefuseMember(value.type_name());
    if (Depth() == 3) return AddNumber(value);
    if (InMetadata()) RefuseText(value.type_name());
    if (field_ == kDType) RefuseDType(ShortenedJson(value));
    RefuseList(value.type_name());
  }

  void AddNumber(const json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargestNumber) {
      Refuse(source(), "'{}' {} must hold integers from 0 to 2^63 - 1, got {}", entry_.name,
             kFields[field_], ShortenedJson(value));
    }
    const auto number = value.get<std::uint64_t>();
    ++count_;
    if (field_ == kOffsets) {
      (count_ == 1 ? entry_.begin : entry_.end) = number;
    } else {
      CheckRank(source(), entry_.name, count_);
      budget_.Add(sizeof(std::int64_t));
      entry_.shape.push_back(static_cast<std::int64_t>(number));
    }
  }

  void OnListEnd() override {
    if (field_ == kOffsets && count_ != 2) {
      Refuse(source(), "'{}' data_offsets must be two numbers, got {}", entry_.name, count_);
    }
  }

  [[noreturn]] void RefuseMember(const char* type) {
    if (InMetadata()) Refuse(source(), "{} must be an object, got {}", kMetadataKey, type);
    Refuse(source(), "'{}' must be an object, got {}", entry_.name, type);
  }
  [[noreturn]] void RefuseText(const char* type) {
    Refuse(source(), "{} must map strings to strings, '{}' is {}", kMetadataKey, Shortened(key_),
           type);
  }
  [[noreturn]] void RefuseDType(const std::string& got) {
    Refuse(source(), "'{}' must have a known dtype, got {}", entry_.name, got);
  }
  [[noreturn]] void RefuseList(const char* type) {
    Refuse(source(), "'{}' {} must be a list, got {}", entry_.name, kFields[field_], type);
  }

  TextBudget budget_;
  Header header_;
  bool has_metadata_ = false;
  TensorEntry entry_;                     // the current member of the header
  std::array<bool, kFieldCount> seen_{};  // fields of `entry_`
  Field field_ = kDType;                  // the field of the next value
  std::size_t count_ = 0;                 // numbers of its list so far
  std::string key_;                       // current key of metadata
};

/// Checks that tensors cover the data: no hole, no overlap, no bytes after the last tensor.
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
    Refuse(source, "the tensors must fill the data of {} bytes, got {}", data_bytes, at);
  }
}

}  // namespace

std::uint64_t TensorBytes(const std::string& source, const TensorEntry& entry) {
  // Checked first: the messages below, and others, print the shape.
  CheckRank(source, entry.name, entry.shape.size());
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
  HeaderReader reader(source);
  ReadStrictJson(text, kMaxTokenBytes, reader);
  Header header = reader.Take();
  CheckNamesStandOnce(source, header.tensors);
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
  CheckCount(source, "tensors", tensors.size());
  std::uint64_t at = 0;
  for (TensorEntry& entry : tensors) {
    if (entry.name == kMetadataKey) Refuse(source, "no tensor may be named {}", kMetadataKey);
    CheckName(source, entry.name);
    const std::uint64_t bytes = TensorBytes(source, entry);
    if (bytes > std::numeric_limits<std::int64_t>::max() - at) {
      Refuse(source, "'{}' ends past the largest file there can be", entry.name);
    }
    entry.begin = at;
    entry.end = at += bytes;
  }
  CheckNamesStandOnce(source, tensors);
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
  CheckCount(source, "keys of metadata", header.metadata.size());
  // A shorter text is within the other bounds of reading: it has no longer string, and a number of
  // a shape counts as 8 bytes and takes at least 2. Parsing takes longer than printing.
  if (text.size() > kMaxTextBytes / 4) ParseHeader(source, text, header.DataBytes());
  std::string length(kHeaderLengthBytes, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  }
  return length + text;
}

}  // namespace narrowfloat::io
