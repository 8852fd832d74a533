// SPDX-License-Identifier: Apache-2.0
// Products of quantized matrices in both modes, in turns. bench/compare.py --products has the
// shares of other libraries' products.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bench/options.h"
#include "narrowfloat/ops/qgemm.h"
#include "narrowfloat/ops/quantize.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/types/quantized_tensor.h"
#include "tools/speed/trial.h"

namespace narrowfloat::speed {
namespace {

struct Size {
  std::int64_t m, n, k;

  std::string Text() const { return fmt::format("{}x{}x{}", m, n, k); }
  double Operations() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
};
constexpr std::array kSizes = {Size{1024, 1024, 1024}, Size{2048, 2048, 2048},
                               Size{4096, 4096, 512}, Size{64, 4096, 4096}};

/// Schemes of the activations and of the weight: one pair for each family of products.
struct Pair {
  std::string_view a, b;

  std::string Text() const { return a == b ? std::string(a) : fmt::format("{} {}", a, b); }
};
constexpr std::array kPairs = {Pair{"fp8_e4m3", "fp8_e4m3"},
                               Pair{"fp8_block1x128_e4m3", "fp8_block128x128_e4m3"},
                               Pair{"mxfp8_e4m3", "mxfp8_e4m3"}, Pair{"nvfp4", "nvfp4"}};

QuantizedTensor Quantized(const Memory& memory, std::string_view scheme) {
  QuantizedTensor tensor({.scheme = &FindScheme(scheme)}, memory.shape());
  Quantize(memory.Input(DType::kFloat32), tensor.View());
  return tensor;
}

struct Row {
  Pair pair;
  std::string_view backend;
  GemmMode mode;
  Trial product;
  std::string failure{};

  std::string Name() const { return fmt::format("{} {}", pair.Text(), GemmModeName(mode)); }
  /// Keeps why the product cannot run here, such as a library that is missing.
  void Sample() {
    if (!failure.empty()) return;
    try {
      product.Sample();
    } catch (const Error& error) {
      failure = error.what();
    }
  }
};

/// Operands and result of one size, and its rows.
class Table {
 public:
  Table(const Size& size, const Options& options)
      : size_(size), out_({size.m, size.n}, options.data, {DType::kFloat32}) {
    const Memory x({size.m, size.k}, options.data, {DType::kFloat32});
    const Memory w({size.n, size.k}, options.data, {DType::kFloat32});
    operands_.reserve(2 * kPairs.size());
    for (const Pair& pair : kPairs) {
      const QuantizedTensor& a = operands_.emplace_back(Quantized(x, pair.a));
      const QuantizedTensor& b = operands_.emplace_back(Quantized(w, pair.b));
      for (const KernelTable* backend : AvailableKernels()) {
        if (!IsWanted(backend->name, options)) continue;
        for (const GemmMode mode : {GemmMode::kReproducible, GemmMode::kFast}) {
          rows_.push_back({pair, backend->name, mode, {[&a, &b, this, backend, mode, &options] {
                             Qgemm(a.ConstView(), b.ConstView(), out_.Output(DType::kFloat32),
                                   {.mode = mode},
                                   {.threads = options.threads, .kernels = backend});
                           }}});
        }
      }
    }
    for (int repetition = 0; repetition < options.repetitions; ++repetition) {
      for (Row& row : rows_) row.Sample();
    }
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  /// Prints the rows, and adds why some cannot run to `failures`.
  void Print(std::set<std::string>& failures) const {
    for (const Row& row : rows_) {
      fmt::print("{:<15} {:<56} {:<8} ", size_.Text(), row.Name(), row.backend);
      if (row.failure.empty()) {
        fmt::print("{:>9.3f} {:>9.1f}\n", row.product.seconds * 1e3, Rate(row));
      } else {
        fmt::print("{:>9} {:>9}\n", "-", "-");
        failures.insert(row.failure);
      }
    }
  }

  void AppendTo(nlohmann::json& products) const {
    for (const Row& row : rows_) {
      nlohmann::json product{
          {"size", size_.Text()}, {"product", row.Name()}, {"backend", row.backend}};
      if (row.failure.empty()) {
        product["ms"] = row.product.seconds * 1e3;
        product["gflop_per_s"] = Rate(row);
      } else {
        product["failure"] = row.failure;
      }
      products.push_back(product);
    }
  }

 private:
  double Rate(const Row& row) const { return size_.Operations() / row.product.seconds / 1e9; }

  Size size_;
  Memory out_;
  std::vector<QuantizedTensor> operands_;
  std::vector<Row> rows_;
};

}  // namespace

void PrintProducts(const Options& options) {
  nlohmann::json products = nlohmann::json::array();
  std::set<std::string> failures;
  if (!options.json) {
    fmt::print("{:<15} {:<56} {:<8} {:>9} {:>9}\n", "m x n x k", "product", "backend", "ms",
               "GFLOP/s");
  }
  for (const Size& size : kSizes) {
    const Table table(size, options);
    if (options.json) {
      table.AppendTo(products);
    } else {
      table.Print(failures);
    }
  }
  for (const std::string& failure : failures) fmt::print("-: {}\n", failure);
  if (!options.json) return;
  const nlohmann::json result{
      {"threads", options.threads}, {"repetitions", options.repetitions}, {"products", products}};
  fmt::print("{}\n", result.dump(2));
}

}  // namespace narrowfloat::speed
