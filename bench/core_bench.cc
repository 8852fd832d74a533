// SPDX-License-Identifier: Apache-2.0
// Each kernel next to the stream that moves the same bytes, round-robin, minimum of 25: the share
// of the wall that it reaches on this machine, on one thread. Figures of different runs do not
// compare; shares do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/speed/workload.h"

namespace narrowfloat::speed {
namespace {

struct Options {
  std::int64_t rows = 8192, cols = 4096;
  int repetitions = 25;
  std::vector<std::string> filters{"bfloat16"};
  std::vector<std::string> backends;
  Data data = Data::kGaussian;
  bool json = false;
};

struct Row {
  const Workload* workload;
  double seconds = std::numeric_limits<double>::infinity();
  double stream_seconds = std::numeric_limits<double>::infinity();
};

template <class Function>
double Seconds(Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool Wanted(const Workload& workload, const Options& options) {
  const auto named = [&](const std::string& filter) {
    return workload.Name().find(filter) != std::string::npos;
  };
  // The oracle is a definition, not a contender; it runs when it is asked for.
  const bool backend =
      options.backends.empty()
          ? workload.backend != ScalarKernels().name
          : std::ranges::find(options.backends, workload.backend) != options.backends.end();
  return backend && std::ranges::all_of(options.filters, named);
}

std::vector<Row> Measure(const Memory& memory, const std::vector<Workload>& workloads,
                         const Options& options) {
  std::vector<Row> rows;
  for (const Workload& workload : workloads) {
    if (Wanted(workload, options)) rows.push_back({.workload = &workload});
  }
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Row& row : rows) {
      row.seconds = std::min(row.seconds, Seconds(row.workload->run));
      row.stream_seconds = std::min(
          row.stream_seconds, Seconds([&] { row.workload->RunStream(memory, {.threads = 1}); }));
    }
  }
  return rows;
}

void PrintTable(const std::vector<Row>& rows) {
  fmt::print("{:<52} {:<8} {:>9} {:>8} {:>11} {:>7}\n", "kernel", "backend", "ms", "GB/s",
             "stream ms", "share");
  for (const Row& row : rows) {
    const auto bytes = static_cast<double>(row.workload->Bytes());
    fmt::print("{:<52} {:<8} {:>9.3f} {:>8.1f} {:>11.3f} {:>6.0f}%\n", row.workload->Name(),
               row.workload->backend, row.seconds * 1e3, bytes / row.seconds / 1e9,
               row.stream_seconds * 1e3, 100 * row.stream_seconds / row.seconds);
  }
}

void PrintJson(const std::vector<Row>& rows, const Options& options) {
  nlohmann::json kernels = nlohmann::json::array();
  for (const Row& row : rows) {
    const auto bytes = static_cast<double>(row.workload->Bytes());
    kernels.push_back({{"kernel", row.workload->Name()},
                       {"backend", row.workload->backend},
                       {"ms", row.seconds * 1e3},
                       {"gb_per_s", bytes / row.seconds / 1e9},
                       {"stream_ms", row.stream_seconds * 1e3},
                       {"share", row.stream_seconds / row.seconds}});
  }
  const nlohmann::json result{{"rows", options.rows},
                              {"cols", options.cols},
                              {"threads", 1},
                              {"repetitions", options.repetitions},
                              {"kernels", kernels}};
  fmt::print("{}\n", result.dump(2));
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"Share of its same-traffic stream that each kernel reaches, one thread"};
  app.add_option("--rows", options.rows)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--cols", options.cols, "a multiple of 1024")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repetitions", options.repetitions)->capture_default_str();
  app.add_option("--filter", options.filters, "words that a kernel's name must hold, all of them")
      ->capture_default_str();
  app.add_option("--backend", options.backends, "tables to run; all but the oracle by default");
  app.add_option("--data", options.data)
      ->transform(CLI::CheckedTransformer(std::vector<std::pair<std::string, Data>>{
          {"gaussian", Data::kGaussian}, {"wide", Data::kWide}, {"half-zero", Data::kHalfZero}}));
  app.add_flag("--json", options.json, "one object instead of the table");
  CLI11_PARSE(app, argc, argv);

  const Memory memory({options.rows, options.cols}, options.data);
  const std::vector<Workload> workloads = MakeWorkloads(memory, {.threads = 1});
  const std::vector<Row> rows = Measure(memory, workloads, options);
  options.json ? PrintJson(rows, options) : PrintTable(rows);
  return 0;
}

}  // namespace
}  // namespace narrowfloat::speed

int main(int argc, char** argv) {
  return narrowfloat::speed::Main(argc, argv);
}
