// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/conventions/convention_row.h"
#include "narrowfloat/io/read_quantized.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/option_table.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

Json TensorJson(const io::TensorLocation& location) {
  const io::StoredTensor& tensor = *location.tensor;
  Json object = {{"name", tensor.name},
                 {"format", io::FormatText(tensor)},
                 {"quantized", !tensor.IsPlain()},
                 {"shape", tensor.shape()},
                 {"bytes", tensor.Bytes()},
                 {"file", location.shard->name}};
  if (!tensor.quantized) return object;
  object["dtype"] = DTypeName(tensor.quantized->dtype);
  Json buffers = Json::object();
  for (std::size_t i = 0; i < tensor.plan.size(); ++i) {
    const io::TensorEntry& entry = tensor.entries[i];
    buffers[std::string(RoleName(tensor.plan[i].role))] = {
        {"dtype", io::Info(entry.dtype).name}, {"shape", entry.shape}, {"bytes", entry.Bytes()}};
  }
  object["buffers"] = std::move(buffers);
  return object;
}

struct Totals {
  std::uint64_t bytes = 0, parameters = 0;
  std::map<std::string, std::size_t> counts;  // by format
};

Totals Count(const io::Checkpoint& in) {
  Totals totals;
  for (const io::TensorLocation& location : in.tensors()) {
    totals.bytes += location.tensor->Bytes();
    if (!location.tensor->accessory) {
      totals.parameters += FlattenShape(location.tensor->shape()).Size();
    }
    ++totals.counts[io::FormatText(*location.tensor)];
  }
  return totals;
}

struct InspectOptions {
  std::string path, from;
};

/// Returns the bits per parameter; null for a convention that this build does not read, because its
/// scales cannot be told from parameters.
Json BitsPerParameter(const Totals& totals, const io::DetectedConvention& convention) {
  const bool known = convention.name == io::kConventionName ||
                     convention.detection == io::Detection::kPlain ||
                     io::FindConvention(convention.name) != nullptr;
  if (!known || totals.parameters == 0) return nullptr;
  return 8.0 * static_cast<double>(totals.bytes) / static_cast<double>(totals.parameters);
}

std::string TextOf(const io::Checkpoint& in, const Totals& totals,
                   const io::DetectedConvention& convention, const Json& bits) {
  std::vector<std::vector<std::string>> rows = {{"name", "format", "shape", "bytes"}};
  for (const io::TensorLocation& location : in.tensors()) {
    const io::StoredTensor& tensor = *location.tensor;
    rows.push_back({Escaped(tensor.name), io::FormatText(tensor), ShapeText(tensor.shape()),
                    fmt::format("{}", tensor.Bytes())});
  }
  std::string counts;
  for (const auto& [format, count] : totals.counts) {
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, format);
  }
  return fmt::format(
      "{}\n{} in {}: {}\n{}, {} parameters{}\nconvention: {} ({})\n", TableText(rows, {3}),
      CountText(in.tensors().size(), "tensor"), CountText(in.shards().size(), "file"), counts,
      BytesText(static_cast<double>(totals.bytes)), totals.parameters,
      bits.is_null() ? "" : fmt::format(", {:.2f} bits per parameter", bits.get<double>()),
      Escaped(convention.name), Escaped(convention.reason));
}

Json JsonOf(const std::string& path, const io::Checkpoint& in, const Totals& totals,
            const io::DetectedConvention& convention, const Json& bits) {
  Json files = Json::array(), tensors = Json::array();
  for (const io::Shard& shard : in.shards()) {
    files.push_back({{"name", shard.name},
                     {"bytes", shard.file.identity().bytes},
                     {"metadata", shard.file.header().metadata}});
  }
  for (const io::TensorLocation& location : in.tensors()) tensors.push_back(TensorJson(location));
  return {{"path", path},
          {"convention", convention.name},
          {"convention_reason", convention.reason},
          {"files", std::move(files)},
          {"tensors", std::move(tensors)},
          {"counts", totals.counts},
          {"bytes", totals.bytes},
          {"parameters", totals.parameters},
          {"bits_per_parameter", bits}};
}

/// Makes only the printed one of text and JSON: each takes as much memory as the headers.
Result Run(const InspectOptions& options, bool as_json) {
  io::Checkpoint in = io::Checkpoint::Open(options.path, io::Unfinished::kOpen);
  CheckInterrupt();
  io::DetectedConvention convention = io::DetectConvention(in);
  // Conventions that are not read are shown too.
  const bool known = io::FindConvention(convention.name) != nullptr ||
                     convention.detection == io::Detection::kAmbiguous;
  if (known || !options.from.empty()) convention = io::ReadAny("inspect", in, options.from);
  const Totals totals = Count(in);
  const Json bits = BitsPerParameter(totals, convention);
  const auto mark = io::FindUnfinishedMark(options.path);
  if (as_json) {
    Json object = JsonOf(options.path, in, totals, convention, bits);
    object["unfinished"] = mark.has_value();
    return {"", std::move(object)};
  }
  std::string text = TextOf(in, totals, convention, bits);
  if (mark)
    text += fmt::format("unfinished: the job that writes this folder left {}\n",
                        Escaped(mark->string()));
  return {std::move(text), {}};
}

}  // namespace

Command AddInspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = AddCommand(app, "inspect");
  AddOption(command, "PATH", options->path);
  AddOption(command, "--from", options->from);
  return {command,
          [options, command] { return Run(*options, command->get_option("--json")->count() > 0); }};
}

}  // namespace narrowfloat::tools
