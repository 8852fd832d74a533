// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "narrowfloat/io/checkpoint.h"
#include "narrowfloat/io/read_quantized.h"
#include "narrowfloat/ops/parallel.h"
#include "tools/assumption.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/option_table.h"
#include "tools/progress.h"
#include "tools/scheme_option.h"
#include "tools/tensor_values.h"
#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

struct DiffOptions {
  std::string a, b, from_a, from_b;
  int threads = 0;
};

/// The difference of two tensors with the same name.
struct Difference {
  std::string name, what;
  std::uint64_t bytes = 0;   // number of different bytes, if the formats are the same
  bool has_values = false;   // whether values are compared; false for integers, for example
  std::uint64_t values = 0;  // number of values with different bits, as fp32 (fp64 if one is fp64)
  std::uint64_t first = 0;   // index of the first of these values
  double largest = 0;        // absolute difference; NaN if one of the values is NaN
};

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kPieceValues = std::size_t{1} << 16;

std::uint64_t CountBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return 0;
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < a.size(); ++at) count += a[at] != b[at] ? 1u : 0u;
  return count;
}

/// Keeps the larger distance; NaN is the largest.
void Raise(double& largest, double distance) {
  if (!std::isnan(largest) && !(distance <= largest)) largest = distance;
}

/// Compares values. `begin` is the index of the first one in the tensor.
template <class T>
void CompareValues(std::span<const T> a, std::span<const T> b, std::size_t begin,
                   Difference& difference) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<Bits>(a[i]) == std::bit_cast<Bits>(b[i])) continue;
    if (difference.values++ == 0) difference.first = begin + i;
    Raise(difference.largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
}

const char* UseText(io::GlobalScale use) {
  switch (use) {
    case io::GlobalScale::kMultiplies:
      return "multiply";
    case io::GlobalScale::kDivides:
      return "divide";
    case io::GlobalScale::kNone:
      break;
  }
  return "none";
}

/// Returns how the forms of two tensors of one shape differ; an empty text if equal bytes are equal
/// values. Names parts that a format's text does not show only if the texts are the same.
std::string FormDifference(const io::StoredTensor& a, const io::StoredTensor& b) {
  constexpr const char* kParts[] = {"codes", "scales", "scales of the whole tensor"};
  std::vector<std::string> found;
  const auto add = [&](std::string_view what, std::string_view in_a, std::string_view in_b) {
    if (in_a != in_b) found.push_back(fmt::format("{} {} and {}", what, in_a, in_b));
  };
  add("formats", io::FormatText(a), io::FormatText(b));
  if (!found.empty()) return found.front();
  add("numbers of tensors", fmt::format("{}", a.entries.size()),
      fmt::format("{}", b.entries.size()));
  if (!a.foreign || !b.foreign) return fmt::format("{}", fmt::join(found, ", "));
  for (std::size_t i = 0; i < std::min(a.entries.size(), b.entries.size()); ++i) {
    const io::TensorEntry &in_a = a.entries[i], &in_b = b.entries[i];
    add(fmt::format("types of {}", kParts[i]), io::Info(in_a.dtype).name,
        io::Info(in_b.dtype).name);
    add(fmt::format("shapes of {}", kParts[i]), ShapeText(in_a.shape), ShapeText(in_b.shape));
  }
  const auto order = [&](std::string_view what, bool in_a, bool in_b, const char* no,
                         const char* yes) { add(what, in_a ? yes : no, in_b ? yes : no); };
  add("scales of the whole tensor", UseText(a.foreign->global), UseText(b.foreign->global));
  order("orders of scales", a.foreign->swizzled, b.foreign->swizzled, "rows", "tiles");
  order("first codes of a byte", a.foreign->high_half_first, b.foreign->high_half_first, "low",
        "high");
  order("orders of values", a.foreign->transposed, b.foreign->transposed, "rows", "columns");
  return fmt::format("{}", fmt::join(found, ", "));
}

class Diff {
 public:
  Diff(const io::Checkpoint& a, const io::Checkpoint& b, Execution execution)
      : a_(a), b_(b), execution_(execution), read_a_(execution), read_b_(execution) {}

  std::vector<Difference> Run() {
    for (const io::TensorLocation& location : a_.tensors()) {
      const io::TensorLocation other = b_.Find(location.tensor->name);
      if (other.tensor == nullptr) {
        differences_.push_back({.name = location.tensor->name, .what = "only in A"});
      } else {
        AddPair(location, other);
      }
    }
    for (const io::TensorLocation& location : b_.tensors()) {
      if (a_.Find(location.tensor->name).tensor != nullptr) continue;
      differences_.push_back({.name = location.tensor->name, .what = "only in B"});
    }
    Progress progress("diff", BytesToRead());
    CountAllBytes(progress);
    for (Pair& pair : pairs_) Compare(pair, progress);
    std::ranges::sort(differences_, {}, &Difference::name);
    return std::move(differences_);
  }

  std::size_t equal() const { return equal_; }

 private:
  /// Two tensors with the same name and shape.
  struct Pair {
    io::TensorLocation a, b;
    std::string form;         // the difference of the forms; empty: equal bytes are equal values
    std::uint64_t bytes = 0;  // number of different bytes, if `form` is empty
  };

  /// A part of one entry of both tensors.
  struct Piece {
    std::size_t pair, entry;
    std::uint64_t begin, bytes;
  };

  void AddPair(const io::TensorLocation& a, const io::TensorLocation& b) {
    if (a.tensor->shape() != b.tensor->shape()) {
      differences_.push_back({.name = a.tensor->name,
                              .what = fmt::format("shapes {} and {}", ShapeText(a.tensor->shape()),
                                                  ShapeText(b.tensor->shape()))});
      return;
    }
    pairs_.push_back({a, b, FormDifference(*a.tensor, *b.tensor)});
    for (std::size_t i = 0; pairs_.back().form.empty() && i < a.tensor->entries.size(); ++i) {
      const std::uint64_t bytes = a.tensor->entries[i].Bytes();
      for (std::uint64_t at = 0; at < bytes; at += kPieceBytes) {
        pieces_.push_back(
            {pairs_.size() - 1, i, at, std::min<std::uint64_t>(kPieceBytes, bytes - at)});
      }
    }
  }

  /// Returns the bytes to read: of A for tensors of the same form, and of both checkpoints for
  /// tensors of different forms. Does not include the values of tensors of the same form, which are
  /// compared only if their bytes differ.
  std::uint64_t BytesToRead() const {
    std::uint64_t total = 0;
    for (const Piece& piece : pieces_) total += piece.bytes;
    for (const Pair& pair : pairs_) {
      if (!pair.form.empty()) total += pair.a.tensor->Bytes() + pair.b.tensor->Bytes();
    }
    return total;
  }

  /// Counts the different bytes of tensors of the same form, on all threads.
  void CountAllBytes(Progress& progress) {
    std::mutex mutex;
    ParallelFor(execution_, pieces_.size(), [&](std::size_t i) {
      CheckInterrupt();
      const Piece& piece = pieces_[i];
      Pair& pair = pairs_[piece.pair];
      thread_local std::vector<std::byte> memory(2 * kPieceBytes);
      const std::span<std::byte> in_a(memory.data(), piece.bytes);
      const std::span<std::byte> in_b(memory.data() + kPieceBytes, piece.bytes);
      Read(pair.a, piece, in_a);
      Read(pair.b, piece, in_b);
      const std::uint64_t count = CountBytes(in_a, in_b);
      const std::lock_guard lock(mutex);
      pair.bytes += count;
      progress.Add(piece.bytes, pair.a.tensor->name);
    });
  }

  static void Read(const io::TensorLocation& location, const Piece& piece,
                   std::span<std::byte> out) {
    io::HomeOf(location, piece.entry)
        .file.Read(location.tensor->entries[piece.entry], piece.begin, out);
  }

  void Compare(const Pair& pair, Progress& progress) {
    const bool same_form = pair.form.empty();
    if (same_form && pair.bytes == 0) {
      ++equal_;
      return;
    }
    Difference difference{
        .name = pair.a.tensor->name, .what = same_form ? "bytes" : pair.form, .bytes = pair.bytes};
    difference.has_values = HasValues(*pair.a.tensor) && HasValues(*pair.b.tensor);
    if (!difference.has_values) {
      difference.what += ", values are not compared";
    } else if (IsFloat64(*pair.a.tensor) || IsFloat64(*pair.b.tensor)) {
      const std::vector<double> a = Doubles(pair.a, read_a_), b = Doubles(pair.b, read_b_);
      CompareAllValues<double>(a, b, difference);
    } else {
      const std::span<const float> a = read_a_.Values(pair.a), b = read_b_.Values(pair.b);
      CompareAllValues<float>(a, b, difference);
    }
    if (!same_form) {
      progress.Add(pair.a.tensor->Bytes() + pair.b.tensor->Bytes(), pair.a.tensor->name);
    }
    differences_.push_back(std::move(difference));
  }

  static bool IsFloat64(const io::StoredTensor& tensor) {
    return tensor.IsPlain() && tensor.entries.front().dtype == io::FileDType::kF64;
  }

  static bool HasValues(const io::StoredTensor& tensor) {
    if (tensor.quantized && IsTransformed(tensor.quantized->spec)) return false;
    return !tensor.IsPlain() || IsFloat64(tensor) ||
           io::WideFloat(tensor.entries.front().dtype).has_value();
  }

  static std::vector<double> Doubles(const io::TensorLocation& location, TensorReader& reader) {
    if (!IsFloat64(*location.tensor)) {
      const std::span<const float> values = reader.Values(location);
      return {values.begin(), values.end()};
    }
    return ItemsOf<double>(reader.Bytes(location).front());
  }

  template <class T>
  void CompareAllValues(std::span<const T> a, std::span<const T> b, Difference& difference) {
    if (a.size() != b.size()) return;
    std::vector<Difference> parts(CeilDiv(a.size(), kPieceValues));
    ParallelFor(execution_, parts.size(), [&](std::size_t i) {
      const std::size_t begin = i * kPieceValues, count = std::min(kPieceValues, a.size() - begin);
      CompareValues(a.subspan(begin, count), b.subspan(begin, count), begin, parts[i]);
    });
    for (const Difference& part : parts) {
      if (part.values == 0) continue;
      if (difference.values == 0) difference.first = part.first;
      difference.values += part.values;
      Raise(difference.largest, part.largest);
    }
  }

  const io::Checkpoint &a_, &b_;
  Execution execution_;
  TensorReader read_a_, read_b_;
  std::vector<Pair> pairs_;
  std::vector<Piece> pieces_;
  std::vector<Difference> differences_;
  std::size_t equal_ = 0;
};

Json JsonOf(const Difference& difference) {
  const bool finite = std::isfinite(difference.largest);
  return {{"name", difference.name},
          {"what", difference.what},
          {"bytes", difference.bytes},
          {"values", difference.has_values ? Json(difference.values) : Json(nullptr)},
          {"first", difference.values > 0 ? Json(difference.first) : Json(nullptr)},
          {"largest", finite && difference.has_values ? Json(difference.largest) : Json(nullptr)}};
}

Result Run(const DiffOptions& options) {
  const Execution execution = ExecutionOf(options.threads);
  io::Checkpoint a = io::Checkpoint::Open(options.a), b = io::Checkpoint::Open(options.b);
  SayAssumption("diff", io::ReadAny("diff", a, options.from_a));
  SayAssumption("diff", io::ReadAny("diff", b, options.from_b));
  Diff diff(a, b, execution);
  const std::vector<Difference> differences = diff.Run();
  std::vector<std::vector<std::string>> rows = {
      {"name", "difference", "bytes", "values", "largest"}};
  Json list = Json::array();
  for (const Difference& difference : differences) {
    rows.push_back({Escaped(difference.name), difference.what, fmt::format("{}", difference.bytes),
                    difference.has_values ? fmt::format("{}", difference.values) : "-",
                    difference.has_values ? fmt::format("{:.6g}", difference.largest) : "-"});
    list.push_back(JsonOf(difference));
  }
  Result result;
  result.text = fmt::format("{}{} {}, {} equal\n",
                            differences.empty() ? "" : TableText(rows, {2, 3, 4}) + "\n",
                            CountText(differences.size(), "tensor"),
                            differences.size() == 1 ? "differs" : "differ", diff.equal());
  result.json = {
      {"a", options.a}, {"b", options.b}, {"equal", diff.equal()}, {"differences", list}};
  result.code = differences.empty() ? ExitCode::kFine : ExitCode::kFinding;
  return result;
}

}  // namespace

Command AddDiff(CLI::App& app) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* command = AddCommand(app, "diff");
  AddOption(command, "A", options->a);
  AddOption(command, "B", options->b);
  AddOption(command, "--from-a", options->from_a);
  AddOption(command, "--from-b", options->from_b);
  AddOption(command, "--threads", options->threads);
  return {command, [options] { return Run(*options); }};
}

}  // namespace narrowfloat::tools
