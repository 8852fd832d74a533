// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/dbias.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/options.h"

namespace narrowfloat::speed {
namespace {

struct Row {
  const Workload* workload;
  std::function<void()> with_sums;
  double alone = std::numeric_limits<double>::infinity(), both = alone;  // seconds, the best
  std::vector<double> ratios{};  // of turns that followed each other

  double Ratio() const {
    std::vector<double> sorted = ratios;
    std::ranges::sort(sorted);
    return sorted.empty() ? 1.0 : sorted[sorted.size() / 2];
  }
};

/// Returns the processor's time on one thread, which other programs do not change; on several
/// threads, the wall clock's.
double Now(const Options& options) {
  timespec now{};
  clock_gettime(options.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Seconds of a turn; the best is kept.
double SecondsOf(const std::function<void()>& run, const Options& options, double& best) {
  const double start = Now(options);
  run();
  const double seconds = Now(options) - start;
  best = std::min(best, seconds);
  return seconds;
}

void PrintTable(const std::vector<Row>& rows) {
  fmt::print("{:<52} {:<8} {:>12} {:>12} {:>8}\n", "kernel", "backend", "alone ms", "dbias ms",
             "ratio");
  for (const Row& row : rows) {
    fmt::print("{:<52} {:<8} {:>12.3f} {:>12.3f} {:>8.3f}\n", row.workload->Name(),
               row.workload->backend, row.alone * 1e3, row.both * 1e3, row.Ratio());
  }
}

void PrintJson(const std::vector<Row>& rows, const Options& options) {
  nlohmann::json kernels = nlohmann::json::array();
  for (const Row& row : rows) {
    kernels.push_back({{"kernel", row.workload->Name()},
                       {"backend", row.workload->backend},
                       {"ms", row.alone * 1e3},
                       {"dbias_ms", row.both * 1e3},
                       {"ratio", row.Ratio()}});
  }
  const nlohmann::json result{{"rows", options.rows},
                              {"cols", options.cols},
                              {"threads", options.threads},
                              {"repetitions", options.repetitions},
                              {"kernels", kernels}};
  fmt::print("{}\n", result.dump(2));
}

}  // namespace

void PrintDbias(const Options& options) {
  const Memory memory({options.rows, options.cols}, options.data);
  const Execution execution{.threads = options.threads};
  std::vector<float> workspace(FlattenShape(DbiasWorkspaceShape(memory.shape())).Size());
  std::vector<float> sums(static_cast<std::size_t>(options.cols));
  const std::vector<Workload> workloads = MakeWorkloads(memory, execution);
  std::vector<Row> rows;
  for (const Workload& workload : workloads) {
    if (workload.verb != Verb::kQuantize || !IsWanted(workload, options)) continue;
    const KernelTable* kernels =
        *std::ranges::find(AvailableKernels(), workload.backend, &KernelTable::name);
    const TensorView dbias{
        reinterpret_cast<std::byte*>(sums.data()), workload.dtype, {options.cols}, {}};
    rows.push_back(
        {&workload, [in = memory.Input(workload.dtype), out = memory.Quantized(workload.spec),
                     dbias, kernels, &workspace, &execution] {
           Execution on_backend = execution;
           on_backend.kernels = kernels;
           QuantizeDbias(in, out, dbias, workspace, on_backend);
         }});
  }
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Row& row : rows) {
      const double alone = SecondsOf(row.workload->run, options, row.alone);
      row.ratios.push_back(SecondsOf(row.with_sums, options, row.both) / alone);
    }
  }
  options.json ? PrintJson(rows, options) : PrintTable(rows);
}

}  // namespace narrowfloat::speed
