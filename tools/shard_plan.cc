// SPDX-License-Identifier: Apache-2.0
#include "tools/shard_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/file.h"
#include "narrowfloat/tensor/error.h"
#include "tools/command.h"

namespace narrowfloat::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRecordBytes = 4096;

/// Computes 64-bit FNV-1a. Only this program writes records, so it need not resist attacks.
class Hash {
 public:
  /// Adds a text and its length, so that "ab" and "c" differ from "a" and "bc".
  void Add(std::string_view text) {
    Add(text.size());
    for (const char c : text) Mix(static_cast<unsigned char>(c));
  }
  void Add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) Mix((number >> shift) & 0xFF);
  }
  std::string Text() const { return fmt::format("{:016x}", hash_); }

 private:
  void Mix(std::uint64_t byte) { hash_ = (hash_ ^ byte) * 0x100000001B3u; }

  std::uint64_t hash_ = 0xCBF29CE484222325u;
};

void AddShape(Hash& hash, const Shape& shape) {
  hash.Add(shape.size());
  for (const std::int64_t size : shape) hash.Add(static_cast<std::uint64_t>(size));
}

/// Adds all that determines the bytes from one input file.
void AddIdentity(Hash& hash, const io::Shard& shard) {
  const io::FileIdentity& identity = shard.file.identity();
  hash.Add(shard.name);
  hash.Add(identity.bytes);
  hash.Add(static_cast<std::uint64_t>(identity.modified_ns));
  const io::Header& header = shard.file.header();
  for (const auto& [key, text] : header.metadata) {
    hash.Add(key);
    hash.Add(text);
  }
  for (const io::TensorEntry& entry : header.tensors) {
    hash.Add(entry.name);
    hash.Add(static_cast<std::uint64_t>(entry.dtype));
    hash.Add(entry.begin);
    AddShape(hash, entry.shape);
  }
}

/// Adds the form in which a weight of another convention is read; it also depends on config.json
/// and --from. Names all members, so that a new member cannot be forgotten.
void AddForm(Hash& hash, const io::ForeignWeight& form) {
  const auto& [codes, scale, matrices, rows, cols, block, tiled, global, globals, transposed,
               swizzled, high_half_first, shape, input_scale] = form;
  for (const std::uint64_t number :
       {static_cast<std::uint64_t>(codes), static_cast<std::uint64_t>(scale),
        std::uint64_t{matrices}, std::uint64_t{rows}, std::uint64_t{cols},
        std::uint64_t{block.rows}, std::uint64_t{block.cols}, static_cast<std::uint64_t>(global),
        std::uint64_t{globals}, std::uint64_t{transposed}, std::uint64_t{swizzled},
        std::uint64_t{high_half_first}, std::uint64_t{tiled}}) {
    hash.Add(number);
  }
  AddShape(hash, shape);
  hash.Add(input_scale);
}

/// Adds a tensor's kind and the entries that it is read from.
void AddReading(Hash& hash, const io::StoredTensor& tensor) {
  hash.Add(tensor.name);
  hash.Add(std::uint64_t{tensor.accessory});
  for (const io::TensorEntry& entry : tensor.entries) hash.Add(entry.name);
  if (tensor.quantized) hash.Add(PrintQuantSpec(tensor.quantized->spec));
  if (tensor.foreign) AddForm(hash, *tensor.foreign);
}

/// Adds the contents of the result's file, except the bytes of its tensors.
void AddContents(Hash& hash, const io::FileContents& contents) {
  for (const auto& [key, text] : contents.metadata) {
    hash.Add(key);
    hash.Add(text);
  }
  for (const io::TensorEntry& entry : contents.tensors) {
    hash.Add(entry.name);
    hash.Add(static_cast<std::uint64_t>(entry.dtype));
    AddShape(hash, entry.shape);
  }
}

std::string JobHash(const io::Checkpoint& in, const io::Shard& shard,
                    const TensorRewriter& rewriter, const io::FileContents& contents) {
  Hash hash;
  hash.Add(NF_VERSION);
  hash.Add(rewriter.Verb());
  hash.Add(rewriter.CacheKey());
  AddContents(hash, contents);
  AddIdentity(hash, shard);
  std::set<std::size_t> others;  // shards with some of its scales
  for (const io::StoredTensor& tensor : shard.tensors) {
    AddReading(hash, tensor);
    others.insert(tensor.shards.begin(), tensor.shards.end());
  }
  for (const std::size_t other : others) AddIdentity(hash, in.shards()[other]);
  return hash.Text();
}

/// Returns the path of a record; with a hash as name if the name is too long for file systems.
fs::path RecordPath(const fs::path& file) {
  const std::string name = file.filename().string();
  std::string record = fmt::format(".{}.job", name);
  if (record.size() > NAME_MAX) {
    Hash hash;
    hash.Add(name);
    record = fmt::format(".{}.job", hash.Text());
  }
  return file.parent_path() / record;
}

std::string TextOfJob(const std::string& hash) {
  return Json{{"job", hash}}.dump() + "\n";
}

std::string RecordText(const ShardPlan& plan) {
  return TextOfJob(plan.job);
}

/// Rejects a result with two tensors of one name; a valid input can lead to this.
void AddOwner(const std::string& verb, const std::string& name, const io::StoredTensor& tensor,
              std::unordered_map<std::string, const io::StoredTensor*>& owners) {
  const auto [owner, fresh] = owners.emplace(name, &tensor);
  if (fresh) return;
  throw InvalidArgument(
      fmt::format("{}: '{}' and '{}' of IN must not become tensors of one name, got '{}' for both",
                  verb, owner->second->name, tensor.name, name));
}

io::FileContents PlanContents(const io::Shard& shard, const fs::path& out,
                              const TensorRewriter& rewriter) {
  io::FileContents contents;
  contents.metadata = io::WithoutDescriptions(shard.file.header().metadata);
  contents.metadata.emplace("format", "pt");  // some readers reject a file without this key
  std::unordered_map<std::string, const io::StoredTensor*> owners;  // by names of the result
  for (const io::StoredTensor& tensor : shard.tensors) {
    if (rewriter.Drops(tensor)) continue;
    const std::size_t before = contents.tensors.size();
    if (rewriter.Rewrites(tensor)) {
      rewriter.Plan(tensor, contents);
    } else {
      contents.AddCopy(tensor);
    }
    for (std::size_t i = before; i < contents.tensors.size(); ++i) {
      AddOwner(rewriter.Verb(), contents.tensors[i].name, tensor, owners);
    }
  }
  const std::string source = io::SafetensorsSource(out);
  io::LayOut(source, contents.tensors);
  // Finds a header that is too large for readers before any file is written.
  if (!contents.tensors.empty()) io::PrintHeader(source, {contents.tensors, contents.metadata});
  return contents;
}

void CheckNames(const std::vector<ShardPlan>& plans) {
  std::unordered_map<std::string_view, const ShardPlan*> owners;
  for (const ShardPlan& plan : plans) {
    for (const io::TensorEntry& entry : plan.contents.tensors) {
      const auto [owner, fresh] = owners.emplace(entry.name, &plan);
      if (fresh) continue;
      throw InvalidArgument(fmt::format("write: '{}' would be in both {} and {}", entry.name,
                                        owner->second->out.string(), plan.out.string()));
    }
  }
}

}  // namespace

std::vector<ShardPlan> PlanShards(const io::Checkpoint& in, const fs::path& out,
                                  const TensorRewriter& rewriter) {
  std::vector<ShardPlan> plans;
  for (const io::Shard& shard : in.shards()) {
    fs::path file = in.folder() ? out / shard.name : out;
    io::FileContents contents = PlanContents(shard, file, rewriter);
    std::string job = JobHash(in, shard, rewriter, contents);
    plans.push_back({&shard, std::move(file), std::move(contents), std::move(job)});
  }
  CheckNames(plans);
  return plans;
}

std::vector<std::size_t> AssignParts(const io::Checkpoint& in, std::size_t parts) {
  const std::vector<io::Shard>& shards = in.shards();
  std::vector<std::size_t> order(shards.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::size_t i) { return shards[i].file.header().DataBytes(); });
  std::vector<std::uint64_t> load(std::min(parts, shards.size()));
  std::vector<std::size_t> assigned(shards.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += std::max<std::uint64_t>(shards[i].file.header().DataBytes(), 1);
    assigned[i] = static_cast<std::size_t>(least - load.begin()) + 1;
  }
  return assigned;
}

bool HasPlannedHeader(const ShardPlan& plan) {
  try {
    const io::SafetensorsFile file(plan.out);
    return file.header().tensors == plan.contents.tensors &&
           file.header().metadata == plan.contents.metadata;
  } catch (const Error&) {
    return false;
  }
}

bool IsFinished(const ShardPlan& plan) {
  try {
    if (io::ReadSmallFile(RecordPath(plan.out), kMaxRecordBytes) != RecordText(plan)) return false;
  } catch (const Error&) {
    return false;  // a file with any error is not finished
  }
  return HasPlannedHeader(plan);
}

void RemoveRecord(const fs::path& file) {
  std::error_code ignored;
  fs::remove(RecordPath(file), ignored);
}

void WriteRecord(const ShardPlan& plan) {
  io::WriteSmallFile(RecordPath(plan.out), RecordText(plan));
}

std::string MarkText(const std::vector<ShardPlan>& plans) {
  Hash hash;
  for (const ShardPlan& plan : plans) hash.Add(plan.job);
  return TextOfJob(hash.Text());
}

bool HasMarkOfAnother(const fs::path& folder, const std::string& text) {
  const fs::path mark = io::UnfinishedMark(folder);
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(mark, ignored))) return false;
  try {
    return io::ReadSmallFile(mark, kMaxRecordBytes) != text;
  } catch (const Error&) {
    // The other job has removed the mark, or no job has written this file.
    return fs::exists(fs::symlink_status(mark, ignored));
  }
}

void CheckMark(const fs::path& folder, const std::string& text, const std::string& verb) {
  if (!HasMarkOfAnother(folder, text)) return;
  throw InvalidArgument(fmt::format(
      "{}: {} must not have the mark of another job (other input, options or version), got {}; "
      "finish that job, or --overwrite replaces its files",
      verb, folder.string(), io::UnfinishedMark(folder).string()));
}

}  // namespace narrowfloat::tools
