// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/file.h"
#include "narrowfloat/io/read_convention.h"
#include "narrowfloat/io/read_quantized.h"
#include "narrowfloat/io/weight_check.h"
#include "narrowfloat/io/write_convention.h"
#include "narrowfloat/tensor/error.h"
#include "tools/assumption.h"
#include "tools/command.h"
#include "tools/option_table.h"
#include "tools/own_directions.h"
#include "tools/progress.h"
#include "tools/tensor_values.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

struct Finding {
  std::string name;  // of the tensor; empty for the checkpoint as a whole
  std::string what;
  bool note = false;  // may be intended, and does not count as a finding
};

class Checking {
 public:
  /// Appends to `findings`, which the caller keeps after an exception of Run.
  Checking(const io::Checkpoint& in, const Execution& execution, std::vector<Finding>& findings)
      : in_(in), reader_(execution), findings_(findings) {}

  void Run() {
    std::uint64_t total = 0;
    for (const io::TensorLocation& location : in_.tensors()) total += location.tensor->Bytes();
    Progress progress("check", total);
    for (const io::TensorLocation& location : in_.tensors()) {
      CheckTensor(location);
      progress.Add(location.tensor->Bytes(), location.tensor->name);
    }
  }

 private:
  void Note(const io::StoredTensor& tensor, std::uint64_t count, std::string_view what,
            bool note = false) {
    if (count > 0) findings_.push_back({tensor.name, fmt::format("{}: {}", what, count), note});
  }

  void CheckTensor(const io::TensorLocation& location) {
    const io::StoredTensor& tensor = *location.tensor;
    if (tensor.foreign) {
      CheckCodes(tensor, io::Canonical(tensor, reader_.Bytes(location)), "");
    } else if (tensor.quantized) {
      CheckOwn(tensor, reader_.Bytes(location));
    } else {
      Note(tensor, CountNotFinite(location), "values that are NaN or infinite");
    }
  }

  std::uint64_t CountNotFinite(const io::TensorLocation& location) {
    const auto count = [](const auto& values) -> std::uint64_t {
      return static_cast<std::uint64_t>(
          std::ranges::count_if(values, [](auto value) { return !std::isfinite(value); }));
    };
    switch (location.tensor->entries.front().dtype) {
      case io::FileDType::kF64:
        return count(ItemsOf<double>(reader_.Bytes(location).front()));
      case io::FileDType::kC64:
        return count(ItemsOf<float>(reader_.Bytes(location).front()));
      default:
        return count(reader_.Values(location));
    }
  }

  void CheckOwn(const io::StoredTensor& tensor,
                const std::vector<std::span<const std::byte>>& input) {
    for (const auto& [direction, weight] : DirectionsOf(tensor, input)) {
      CheckCodes(tensor, weight, direction == Direction::kRowwise ? "" : "columnwise ");
    }
    // CheckCodes has checked the amaxes of NVFP4: they give the scales of the whole tensor.
    if (tensor.quantized->spec.scheme->layout.scale_type == ScaleType::kE4M3) return;
    for (std::size_t i = 0; i < tensor.plan.size(); ++i) {
      const Role role = tensor.plan[i].role;
      if (role != Role::kScale && role != Role::kAmaxRowwise && role != Role::kAmaxColumnwise) {
        continue;
      }
      const std::vector<float> values = ItemsOf<float>(input[i]);
      const auto bad = std::ranges::count_if(
          values, [](float value) { return !std::isfinite(value) || value < 0; });
      Note(tensor, static_cast<std::uint64_t>(bad),
           fmt::format("numbers of {} that are NaN, infinite or negative", RoleName(role)));
    }
  }

  /// Checks codes and scales. `direction` begins the texts of findings.
  void CheckCodes(const io::StoredTensor& tensor, const io::CanonicalWeight& weight,
                  std::string_view direction) {
    const auto note = [&](std::uint64_t count, std::string_view what, bool is_note = false) {
      Note(tensor, count, fmt::format("{}{}", direction, what), is_note);
    };
    const io::WeightCheck check = io::CheckWeight(weight);
    note(check.nan_codes, "codes that are NaN or infinite");
    note(check.nan_scales, "scales that are NaN or infinite");
    note(check.negative_scales, "negative scales");
    note(check.zero_scales, "scales of zero over codes that are not zero");
    note(check.infinite_values, "values that are infinite, of finite codes and scales");
    note(check.saturated_blocks, "blocks with half of their codes saturated", true);
  }

  const io::Checkpoint& in_;
  TensorReader reader_;
  std::vector<Finding>& findings_;
};

struct CheckOptions {
  std::string path, from;
};

/// Finds tensors that the index lacks. (Checkpoint::Open rejects an index with missing tensors.)
void CheckIndex(const io::Checkpoint& in, std::vector<Finding>& findings) {
  if (!in.index()) return;
  for (const io::Shard& shard : in.shards()) {
    const std::vector<std::string>& named = in.index()->second.tensors.at(shard.name);
    for (const io::TensorEntry& entry : shard.file.header().tensors) {
      if (std::ranges::binary_search(named, entry.name)) continue;
      findings.push_back(
          {entry.name, fmt::format("it is in {}, the index must name it", shard.name)});
    }
  }
}

/// Compares the blocks of FP8 weights with the size in config.json. Weights with 4-bit codes may
/// have blocks of their own.
void CheckBlocks(const io::Checkpoint& in, std::vector<Finding>& findings) {
  const std::optional<BlockShape> stated = io::StatedBlock(in);
  if (!stated) return;
  std::size_t others = 0;
  const io::StoredTensor* first = nullptr;
  for (const io::TensorLocation& location : in.tensors()) {
    const auto& weight = location.tensor->foreign;
    if (!weight || weight->Packed() || weight->block == *stated) continue;
    if (others++ == 0) first = location.tensor;
  }
  if (first == nullptr) return;
  const BlockShape block = first->foreign->block;
  findings.push_back(
      {"", fmt::format("config.json states blocks of {}x{}, the scales of {} fit only others: '{}' "
                       "is read with blocks of {}x{}",
                       stated->rows, stated->cols, CountText(others, "weight"), first->name,
                       block.rows, block.cols)});
}

/// Errors: as ExecutionOf; InvalidArgument if two conventions fit and `options` names none.
std::vector<Finding> Check(const CheckOptions& options, std::size_t& tensors) {
  // Before the try block: an invalid number of threads is no finding.
  const Execution execution = ExecutionOf(0);
  std::vector<Finding> findings;
  if (const auto mark = io::FindUnfinishedMark(options.path)) {
    findings.push_back({"", fmt::format("the job that writes this folder is unfinished: it has {}",
                                        mark->string())});
  }
  try {
    io::Checkpoint in = io::Checkpoint::Open(options.path, io::Unfinished::kOpen);
    const std::string stale = SayAssumption("check", io::ReadAny("check", in, options.from)).stale;
    if (!stale.empty()) findings.push_back({"", stale});
    tensors = in.tensors().size();
    CheckIndex(in, findings);
    CheckBlocks(in, findings);
    Checking(in, execution, findings).Run();
  } catch (const io::AmbiguousConvention&) {
    throw;  // --from is missing
  } catch (const InvalidArgument& error) {
    findings.push_back({"", error.what()});  // a damaged file is a finding of this command
  }
  return findings;
}

/// Rejects a path without a file or folder: a wrong path is an error, not a finding.
void CheckIsReadable(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) return;
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory && error != std::errc::too_many_symbolic_link_levels) {
    throw IoError(fmt::format("read: {}, {}", path, error.message()));
  }
  const io::InputFile file(path);  // throws the error
}

Result Run(const CheckOptions& options) {
  CheckIsReadable(options.path);
  if (!options.from.empty()) {
    io::CheckIsConvention("check", options.from, io::ReadConventions());
  }
  std::size_t tensors = 0;
  const std::vector<Finding> findings = Check(options, tensors);
  Result result;
  Json list = Json::array();
  std::size_t count = 0;
  for (const Finding& finding : findings) {
    count += finding.note ? 0u : 1u;
    result.text += fmt::format("{}{}{}{}\n", finding.note ? "note: " : "", Escaped(finding.name),
                               finding.name.empty() ? "" : ": ", Escaped(finding.what));
    list.push_back({{"name", finding.name}, {"what", finding.what}, {"note", finding.note}});
  }
  result.text +=
      fmt::format("{} in {}\n", CountText(count, "finding"), CountText(tensors, "tensor"));
  result.json = {{"path", options.path}, {"tensors", tensors}, {"findings", list}};
  result.code = count == 0 ? ExitCode::kFine : ExitCode::kFinding;
  return result;
}

}  // namespace

Command AddCheck(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = AddCommand(app, "check");
  AddOption(command, "PATH", options->path);
  AddOption(command, "--from", options->from);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
