// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/read_quantized.h"
#include "tools/tensor_values.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

struct DiffOptions {
  std::string a, b;
  int threads = 0;
};

/// How two tensors of one name differ.
struct Difference {
  std::string name, what;
  std::uint64_t bytes = 0;   // that differ, of tensors of the same format
  std::uint64_t values = 0;  // that differ by bits, as fp32
  std::uint64_t first = 0;   // the first of these
  double largest = 0;        // absolute difference; NaN where one of them is
};

std::uint64_t CountBytes(const std::vector<std::span<const std::byte>>& a,
                         const std::vector<std::span<const std::byte>>& b) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t at = 0; at < a[i].size(); ++at) count += a[i][at] != b[i][at] ? 1u : 0u;
  }
  return count;
}

void CompareValues(std::span<const float> a, std::span<const float> b, Difference& difference) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) == std::bit_cast<std::uint32_t>(b[i])) continue;
    if (difference.values++ == 0) difference.first = i;
    const double distance = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(distance <= difference.largest)) difference.largest = distance;
  }
}

class Diff {
 public:
  Diff(const io::Checkpoint& a, const io::Checkpoint& b, Execution execution)
      : a_(a), b_(b), read_a_(a, execution), read_b_(b, execution) {}

  std::vector<Difference> Run() {
    for (const io::TensorLocation& location : a_.tensors()) {
      const io::TensorLocation other = b_.Find(location.tensor->name);
      if (other.tensor == nullptr) {
        differences_.push_back({.name = location.tensor->name, .what = "only in A"});
      } else {
        Compare(location, other);
      }
    }
    for (const io::TensorLocation& location : b_.tensors()) {
      if (a_.Find(location.tensor->name).tensor != nullptr) continue;
      differences_.push_back({.name = location.tensor->name, .what = "only in B"});
    }
    std::ranges::sort(differences_, {}, &Difference::name);
    return std::move(differences_);
  }

  std::size_t equal() const { return equal_; }

 private:
  void Compare(const io::TensorLocation& a, const io::TensorLocation& b) {
    const std::string format_a = io::FormatText(*a.tensor), format_b = io::FormatText(*b.tensor);
    Difference difference{.name = a.tensor->name, .what = ""};
    if (a.tensor->shape() != b.tensor->shape()) {
      difference.what = fmt::format("shapes {} and {}", ShapeText(a.tensor->shape()),
                                    ShapeText(b.tensor->shape()));
      differences_.push_back(std::move(difference));
      return;
    }
    const bool same_form = format_a == format_b && SameEntries(*a.tensor, *b.tensor);
    if (same_form) difference.bytes = CountBytes(read_a_.Bytes(a), read_b_.Bytes(b));
    if (same_form && difference.bytes == 0) {
      ++equal_;
      return;
    }
    difference.what = same_form ? "bytes" : fmt::format("formats {} and {}", format_a, format_b);
    CompareValues(a, b, difference);
    differences_.push_back(std::move(difference));
  }

  void CompareValues(const io::TensorLocation& a, const io::TensorLocation& b,
                     Difference& difference) {
    const auto values_a = read_a_.Values(a), values_b = read_b_.Values(b);
    if (values_a.size() == values_b.size()) {
      tools::CompareValues(values_a, values_b, difference);
    }
  }

  /// Whether equal bytes mean equal values.
  static bool SameEntries(const io::StoredTensor& a, const io::StoredTensor& b) {
    if (a.foreign && b.foreign &&
        (a.foreign->global != b.foreign->global ||
         a.foreign->transposed != b.foreign->transposed)) {
      return false;
    }
    return std::ranges::equal(a.entries, b.entries, [](const auto& one, const auto& other) {
      return one.dtype == other.dtype && one.shape == other.shape;
    });
  }

  const io::Checkpoint &a_, &b_;
  TensorReader read_a_, read_b_;
  std::vector<Difference> differences_;
  std::size_t equal_ = 0;
};

Json JsonOf(const Difference& difference) {
  const bool finite = std::isfinite(difference.largest);
  return {{"name", difference.name},
          {"what", difference.what},
          {"bytes", difference.bytes},
          {"values", difference.values},
          {"first", difference.values > 0 ? Json(difference.first) : Json(nullptr)},
          {"largest", finite ? Json(difference.largest) : Json(nullptr)}};
}

Result Run(const DiffOptions& options) {
  const InterruptScope interrupts;
  const Execution execution{.threads = options.threads, .kernels = &ActiveKernels()};
  ThreadCount(execution);
  const io::Checkpoint a = OpenGrouped("diff", options.a), b = OpenGrouped("diff", options.b);
  Diff diff(a, b, execution);
  const std::vector<Difference> differences = diff.Run();
  std::vector<std::vector<std::string>> rows = {
      {"name", "difference", "bytes", "values", "largest"}};
  Json list = Json::array();
  for (const Difference& difference : differences) {
    rows.push_back({Escaped(difference.name), difference.what, fmt::format("{}", difference.bytes),
                    fmt::format("{}", difference.values),
                    fmt::format("{:.6g}", difference.largest)});
    list.push_back(JsonOf(difference));
  }
  Result result;
  result.text = fmt::format("{}{} differ, {} equal\n",
                            differences.empty() ? "" : TableText(rows, {2, 3, 4}) + "\n",
                            CountText(differences.size(), "tensor"), diff.equal());
  result.json = {
      {"a", options.a}, {"b", options.b}, {"equal", diff.equal()}, {"differences", list}};
  result.code = differences.empty() ? ExitCode::kFine : ExitCode::kFinding;
  return result;
}

}  // namespace

Command AddDiff(CLI::App& app) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command =
      app.add_subcommand("diff", "Compare two checkpoints; exit code 1 if they differ");
  command->add_option("A", options->a, "File, index file or folder")->required();
  command->add_option("B", options->b, "File, index file or folder")->required();
  command->add_option("--threads", options->threads, "Threads; all that we may use by default")
      ->check(AtLeastOne);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
