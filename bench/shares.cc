// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/options.h"
#include "tools/speed/trial.h"

namespace narrowfloat::speed {
namespace {

struct Row {
  const Workload* workload;
  Trial kernel, stream;
  std::optional<Trial> compared;  // the kernel on other threads or addresses

  double Share() const { return stream.seconds / kernel.seconds; }
  double Speedup() const { return kernel.seconds / compared->seconds; }
  double GigabytesPerSecond() const {
    return static_cast<double>(workload->Bytes()) / kernel.seconds / 1e9;
  }
};

void Measure(std::vector<Row>& rows, int repetitions) {
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (Row& row : rows) {
      row.kernel.Sample();
      row.stream.Sample();
      if (row.compared) row.compared->Sample();
    }
  }
}

void PrintTable(const std::vector<Row>& rows, const Options& options) {
  fmt::print("{:<52} {:<8} {:>9} {:>8} {:>11} {:>7}", "kernel", "backend", "ms", "GB/s",
             "stream ms", "share");
  if (options.compare_threads != 0)
    fmt::print(" {:>12} {:>7}", fmt::format("{} threads ms", options.compare_threads), "speedup");
  if (options.compare_offset != 0)
    fmt::print(" {:>12} {:>7}", fmt::format("line + {} ms", options.compare_offset), "speedup");
  fmt::print("\n");
  for (const Row& row : rows) {
    fmt::print("{:<52} {:<8} {:>9.3f} {:>8.1f} {:>11.3f} {:>6.0f}%", row.workload->Name(),
               row.workload->backend, row.kernel.seconds * 1e3, row.GigabytesPerSecond(),
               row.stream.seconds * 1e3, 100 * row.Share());
    if (row.compared) fmt::print(" {:>12.3f} {:>7.2f}", row.compared->seconds * 1e3, row.Speedup());
    fmt::print("\n");
  }
}

void PrintJson(const std::vector<Row>& rows, const Options& options) {
  nlohmann::json kernels = nlohmann::json::array();
  for (const Row& row : rows) {
    nlohmann::json kernel{
        {"kernel", row.workload->Name()},        {"backend", row.workload->backend},
        {"ms", row.kernel.seconds * 1e3},        {"gb_per_s", row.GigabytesPerSecond()},
        {"stream_ms", row.stream.seconds * 1e3}, {"share", row.Share()}};
    if (row.compared) {
      kernel["compare_ms"] = row.compared->seconds * 1e3;
      kernel["speedup"] = row.Speedup();
    }
    kernels.push_back(kernel);
  }
  nlohmann::json result{{"rows", options.rows},
                        {"cols", options.cols},
                        {"threads", options.threads},
                        {"repetitions", options.repetitions},
                        {"kernels", kernels}};
  if (options.compare_threads != 0) result["compare_threads"] = options.compare_threads;
  if (options.compare_offset != 0) result["compare_offset"] = options.compare_offset;
  fmt::print("{}\n", result.dump(2));
}

}  // namespace

void PrintShares(const Options& options) {
  const Memory memory({options.rows, options.cols}, options.data);
  const Execution execution{.threads = options.threads};
  const bool compares = options.compare_threads != 0 || options.compare_offset != 0;
  const Execution other{.threads = compares && options.compare_offset == 0 ? options.compare_threads
                                                                           : options.threads};
  const std::vector<Workload> workloads = MakeWorkloads(memory, execution),
                              others = MakeWorkloads(memory, other, options.compare_offset);
  std::vector<Row> rows;
  for (std::size_t i = 0; i < workloads.size(); ++i) {
    const Workload& workload = workloads[i];
    if (!IsWanted(workload, options)) continue;
    Row row{&workload,
            {workload.run, workload.prepare},
            {[&] { workload.RunStream(memory, execution); }},
            {}};
    if (compares) row.compared = Trial{others[i].run, others[i].prepare};
    rows.push_back(std::move(row));
  }
  Measure(rows, options.repetitions);
  options.json ? PrintJson(rows, options) : PrintTable(rows, options);
}

}  // namespace narrowfloat::speed
