// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/decode_weight.h"
#include "narrowfloat/io/file.h"
#include "narrowfloat/numerics/codec.h"
#include "narrowfloat/numerics/formats.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"
#include "tools/assumption.h"
#include "tools/choice.h"
#include "tools/command.h"
#include "tools/input_files.h"
#include "tools/interrupt.h"
#include "tools/option_table.h"
#include "tools/progress.h"
#include "tools/report_page.h"
#include "tools/scheme_option.h"
#include "tools/scratch_tensor.h"
#include "tools/tensor_values.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::string in, out;
  std::vector<std::string> schemes;
  int threads = 0;
  bool overwrite = false;
};

/// Counts of numbers by the power of two at or below their magnitude, without zeros and NaN.
using Histogram = std::map<int, std::uint64_t>;

void Count(float value, Histogram& histogram) {
  if (value != 0 && std::isfinite(value)) ++histogram[std::ilogb(value)];
}

Json JsonOf(const Histogram& histogram) {
  Json object = Json::object();
  for (const auto& [power, count] : histogram) object[std::to_string(power)] = count;
  return object;
}

/// Errors that one scheme causes in one tensor.
struct Outcome {
  double signal = 0, noise = 0, largest = 0;
  std::uint64_t values = 0, underflows = 0, saturated = 0, bytes = 0;
  std::uint64_t nonfinite_changed = 0;  // NaN or infinite before or after, and different
  Histogram scales;

  /// Returns the SQNR of the finite values; nullopt without errors, or without finite values.
  std::optional<double> SqnrDb() const {
    if (noise == 0 || signal == 0) return std::nullopt;
    return 10 * std::log10(signal / noise);
  }
};

/// Sums the errors of finite values. NaN and infinity have no error to sum: counts those replaced
/// by another value, and the values that become one.
void Compare(std::span<const float> before, std::span<const float> after, Outcome& outcome) {
  outcome.values = before.size();
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (!std::isfinite(before[i]) || !std::isfinite(after[i])) {
      const bool same = before[i] == after[i] || (std::isnan(before[i]) && std::isnan(after[i]));
      outcome.nonfinite_changed += same ? 0u : 1u;
      continue;
    }
    const double x = static_cast<double>(before[i]), error = static_cast<double>(after[i]) - x;
    outcome.signal += x * x;
    outcome.noise += error * error;
    outcome.largest = std::max(outcome.largest, std::abs(error));
    outcome.underflows += x != 0 && after[i] == 0 ? 1u : 0u;
  }
}

template <FloatFormat F>
std::array<bool, 256> LargestCodes() {
  std::array<bool, 256> largest{};
  for (std::uint32_t code = 0; code < std::uint32_t{1} << kBits<F>; ++code) {
    largest[code] = std::abs(Decode<F>(code)) == kMaxValue<F>;
  }
  return largest;
}

std::uint64_t CountLargest(const SchemeInfo& scheme, std::span<const std::byte> codes) {
  const bool packed = scheme.element_bits == 4;
  const std::array<bool, 256> largest = packed                          ? LargestCodes<E2M1>()
                                        : scheme.element == E4M3::kName ? LargestCodes<E4M3>()
                                                                        : LargestCodes<E5M2>();
  std::uint64_t count = 0;
  for (const std::byte byte : codes) {
    const auto bits = std::to_integer<std::uint32_t>(byte);
    count += largest[packed ? bits & 0xF : bits] ? 1u : 0u;
    count += packed && largest[bits >> 4] ? 1u : 0u;
  }
  return count;
}

class Reporting {
 public:
  Reporting(const io::Checkpoint& in, const std::vector<QuantSpec>& specs, Execution execution)
      : in_(in), specs_(specs), execution_(execution), reader_(execution), choice_(in, {}, {}) {
    std::uint64_t total = 0;
    for (const io::TensorLocation& location : in.tensors()) {
      if (choice_.Of(*location.tensor).selected) total += location.tensor->Bytes();
    }
    progress_.emplace("report", total);
  }

  Json Run() {
    std::vector<Json> schemes;
    for (const QuantSpec& spec : specs_) {
      schemes.push_back({{"scheme", PrintQuantSpec(spec)},
                         {"bytes_after", std::uint64_t{0}},
                         {"bits_per_parameter", nullptr},
                         {"worst_sqnr_db", nullptr},
                         {"nonfinite_changed", std::uint64_t{0}},
                         {"refused", 0}});
    }
    Json tensors = Json::array();
    std::uint64_t before = 0, parameters = 0;
    for (const io::TensorLocation& location : in_.tensors()) {
      CheckInterrupt();
      before += location.tensor->Bytes();
      parameters += FlattenShape(location.tensor->shape()).Size();
      if (choice_.Of(*location.tensor).selected) {
        tensors.push_back(TensorReport(location, schemes));
      } else {
        for (Json& scheme : schemes) AddBytes(scheme, location.tensor->Bytes());
      }
    }
    for (Json& scheme : schemes) {
      if (parameters == 0) continue;
      scheme["bits_per_parameter"] =
          8 * scheme["bytes_after"].get<double>() / static_cast<double>(parameters);
    }
    progress_.reset();
    return {{"tensors_total", in_.tensors().size()},
            {"bytes_before", before},
            {"parameters", parameters},
            {"schemes", schemes},
            {"tensors", tensors}};
  }

 private:
  static void AddBytes(Json& scheme, std::uint64_t bytes) {
    scheme["bytes_after"] = scheme["bytes_after"].get<std::uint64_t>() + bytes;
  }

  Json TensorReport(const io::TensorLocation& location, std::vector<Json>& totals) {
    const io::StoredTensor& tensor = *location.tensor;
    const std::span<const float> values = reader_.Values(location);
    Histogram histogram;
    for (const float value : values) Count(value, histogram);
    Json outcomes = Json::array();
    std::uint64_t shown = 0;  // bytes reported as progress; each scheme counts for a share
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      CheckInterrupt();
      const std::optional<Outcome> outcome = Try(specs_[i], tensor.shape(), values);
      const std::uint64_t done = tensor.Bytes() * (i + 1) / specs_.size();
      progress_->Add(done - std::exchange(shown, done), tensor.name);
      AddBytes(totals[i], outcome ? outcome->bytes : tensor.Bytes());
      if (!outcome) {
        totals[i]["refused"] = totals[i]["refused"].get<int>() + 1;
        continue;
      }
      const std::optional<double> sqnr = outcome->SqnrDb();
      Json& worst = totals[i]["worst_sqnr_db"];
      if (sqnr && (worst.is_null() || *sqnr < worst.get<double>())) worst = *sqnr;
      Json& changed = totals[i]["nonfinite_changed"];
      changed = changed.get<std::uint64_t>() + outcome->nonfinite_changed;
      const auto share = [&](std::uint64_t count) {
        return static_cast<double>(count) / static_cast<double>(outcome->values);
      };
      outcomes.push_back({{"scheme", PrintQuantSpec(specs_[i])},
                          {"bytes", outcome->bytes},
                          {"sqnr_db", sqnr ? Json(*sqnr) : Json(nullptr)},
                          {"largest_error", outcome->largest},
                          {"underflow", share(outcome->underflows)},
                          {"saturation", share(outcome->saturated)},
                          {"nonfinite_changed", outcome->nonfinite_changed},
                          {"scales", JsonOf(outcome->scales)}});
    }
    return {{"name", tensor.name},
            {"shape", tensor.shape()},
            {"bytes", tensor.Bytes()},
            {"values", JsonOf(histogram)},
            {"schemes", outcomes}};
  }

  static bool TakesShape(const QuantSpec& spec, const Shape& shape) {
    try {
      PlanQuantize(spec, shape);
      return true;
    } catch (const InvalidArgument&) {
      return false;
    }
  }

  /// Quantizes and decodes; returns nullopt for a shape that the scheme does not support.
  std::optional<Outcome> Try(const QuantSpec& spec, const Shape& shape,
                             std::span<const float> values) {
    if (!TakesShape(spec, shape)) return std::nullopt;
    Outcome outcome;
    const QuantizedView view = scratch_.Bind(spec, shape);
    Quantize({reinterpret_cast<const std::byte*>(values.data()),
              DType::kFloat32,
              shape,
              {},
              Device::kCpu},
             view, execution_);
    const auto memory = decoded_.Take(values.size() * sizeof(float));
    const std::vector<BufferPlan> plan = io::StoredBuffers(spec, shape);
    Dequantize(view, {memory.data(), DType::kFloat32, shape, {}, Device::kCpu}, execution_);
    Compare(values, {reinterpret_cast<const float*>(memory.data()), values.size()}, outcome);
    // Counts one direction, which is the columnwise one only if the tensor has no other.
    const auto in_plan = [&](Role rowwise, Role columnwise) {
      return std::ranges::count(plan, rowwise, &BufferPlan::role) > 0 ? rowwise : columnwise;
    };
    const Role data = in_plan(Role::kRowwiseData, Role::kColumnwiseData);
    const Role scale = in_plan(Role::kRowwiseScaleInv, Role::kColumnwiseScaleInv);
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const std::span<const std::byte> bytes = scratch_.buffers()[i];
      outcome.bytes += bytes.size();
      if (plan[i].role == data) outcome.saturated = CountLargest(*spec.scheme, bytes);
      if (plan[i].role == scale) CountScales(*spec.scheme, bytes, outcome.scales);
    }
    return outcome;
  }

  /// Counts scales that are not zero bytes: padding, and zero or tiny blocks, have zero bytes.
  static void CountScales(const SchemeInfo& scheme, std::span<const std::byte> bytes,
                          Histogram& histogram) {
    const io::FileDType type = io::FileDTypeOfScales(scheme.layout.scale_type);
    const std::size_t item = io::Info(type).bits / 8;
    for (std::size_t i = 0; i < bytes.size() / item; ++i) {
      const auto scale = bytes.subspan(i * item, item);
      const bool padding = std::ranges::all_of(scale, [](std::byte b) { return b == std::byte{}; });
      if (!padding) Count(io::ScaleValue(type, bytes, i), histogram);
    }
  }

  const io::Checkpoint& in_;
  const std::vector<QuantSpec>& specs_;
  Execution execution_;
  TensorReader reader_;
  Choice choice_;
  std::optional<Progress> progress_;
  ScratchTensor scratch_;
  ByteBuffer decoded_;
};

std::vector<QuantSpec> SpecsOf(const ReportOptions& options) {
  std::vector<QuantSpec> specs;
  for (const std::string& scheme : options.schemes) {
    specs.push_back(ParseScheme("report", scheme));
    if (!IsTransformed(specs.back())) continue;
    throw Unsupported(fmt::format(
        "report: --scheme must have rowwise codes or no Hadamard transform (rht), which "
        "is not undone, got {}",
        scheme));
  }
  if (!specs.empty()) return specs;
  for (const SchemeInfo& scheme : kSchemes)
    specs.push_back(ParseQuantSpec(std::string(scheme.name)));
  return specs;
}

[[noreturn]] void RefuseToReplace(const fs::path& page) {
  throw InvalidArgument(
      fmt::format("report: {} exists, --overwrite is needed to replace it", page.string()));
}

/// Rejects a page path that is no file, or that exists without --overwrite, before the checkpoint
/// is read. Errors: InvalidArgument.
void CheckPage(const ReportOptions& options) {
  const fs::path page(options.out);
  std::error_code error;
  const fs::file_status status = fs::status(page, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw InvalidArgument(fmt::format(
        "report: the page must be a file, {} is a folder or no regular file", options.out));
  }
  if (!fs::is_directory(io::FolderOf(page), error)) {
    throw InvalidArgument(
        fmt::format("report: the folder of the page must exist, got {}", options.out));
  }
  if (!options.overwrite && fs::exists(fs::symlink_status(page, error))) RefuseToReplace(page);
}

/// Writes the page. One that appeared during the run is replaced only with --overwrite.
void WritePage(const ReportOptions& options, io::AtomicFile& page, const std::string& text) {
  page.Write(0, std::as_bytes(std::span(text)));
  if (options.overwrite) return page.Commit();
  if (!page.CommitNew()) RefuseToReplace(options.out);
}

/// Rejects a page that would replace a file of the model: a shard, or any file in the model's
/// folder. An earlier page (.html) in that folder may be replaced.
void CheckIsNotOfModel(const io::Checkpoint& in, const std::string& out) {
  std::error_code ignored;
  InputFiles files;
  for (const io::Shard& shard : in.shards()) files.Add(shard.file.path());
  if (in.folder()) {
    for (fs::recursive_directory_iterator
             at(*in.folder(), fs::directory_options::skip_permission_denied, ignored),
         end;
         at != end; at.increment(ignored)) {
      if (at->path().extension() != ".html") files.Add(at->path());
    }
  }
  files.CheckSpared("report: the page", out);
}

Result Run(const ReportOptions& options) {
  CheckPage(options);
  const std::vector<QuantSpec> specs = SpecsOf(options);
  const Execution execution = ExecutionOf(options.threads);
  const io::Checkpoint in = io::Checkpoint::Open(options.in);
  CheckIsFloat("report", in);
  CheckIsNotOfModel(in, options.out);
  io::RemoveLeftovers(io::FolderOf(options.out));
  io::AtomicFile page(options.out);  // finds a folder that is not writable before tensors are read
  Result result;
  result.json = {{"in", options.in}, {"out", options.out}};
  result.json.update(Reporting(in, specs, execution).Run());
  WritePage(options, page, ReportPage(result.json));
  std::vector<std::vector<std::string>> rows = {
      {"scheme", "size", "bits", "worst SQNR, dB", "NaN, infinity changed"}};
  for (const Json& scheme : result.json["schemes"]) {
    const Json &bits = scheme["bits_per_parameter"], &worst = scheme["worst_sqnr_db"];
    rows.push_back({scheme["scheme"].get<std::string>(),
                    BytesText(scheme["bytes_after"].get<double>()),
                    bits.is_null() ? "" : fmt::format("{:.2f}", bits.get<double>()),
                    worst.is_null() ? "" : fmt::format("{:.2f}", worst.get<double>()),
                    fmt::format("{}", scheme["nonfinite_changed"].get<std::uint64_t>())});
  }
  result.text = fmt::format("{}\n{} in {}\n", TableText(rows, {1, 2, 3, 4}),
                            CountText(result.json["tensors"].size(), "tensor"), options.out);
  return result;
}

}  // namespace

Command AddReport(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command = AddCommand(app, "report");
  AddOption(command, "IN", options->in);
  AddOption(command, "--out", options->out);
  AddOption(command, "--scheme", options->schemes);
  AddOption(command, "--threads", options->threads);
  AddOption(command, "--overwrite", options->overwrite);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
