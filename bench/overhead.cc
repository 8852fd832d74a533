// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/options.h"
#include "tools/speed/trial.h"

namespace narrowfloat::speed {
namespace {

// Side of a tensor so small that the kernel's time hardly counts, and calls per turn, so many that
// the clock's resolution does not.
constexpr std::int64_t kSide = 32;
constexpr int kCalls = 500;

struct Row {
  const Workload* workload;
  Trial one_thread, chosen;
};

Trial Repeated(const Workload& workload) {
  return {[&workload] {
    for (int i = 0; i < kCalls; ++i) workload.run();
  }};
}

double Microseconds(const Trial& trial) {
  return trial.seconds / kCalls * 1e6;
}

void PrintTable(const std::vector<Row>& rows) {
  fmt::print("microseconds of a call on {}x{}\n\n", kSide, kSide);
  fmt::print("{:<52} {:<8} {:>9} {:>15}\n", "kernel", "backend", "threads=1", "threads chosen");
  for (const Row& row : rows) {
    fmt::print("{:<52} {:<8} {:>9.3f} {:>15.3f}\n", row.workload->Name(), row.workload->backend,
               Microseconds(row.one_thread), Microseconds(row.chosen));
  }
}

void PrintJson(const std::vector<Row>& rows, const Options& options) {
  nlohmann::json kernels = nlohmann::json::array();
  for (const Row& row : rows) {
    kernels.push_back({{"kernel", row.workload->Name()},
                       {"backend", row.workload->backend},
                       {"us", Microseconds(row.one_thread)},
                       {"us_threads_chosen", Microseconds(row.chosen)}});
  }
  const nlohmann::json result{
      {"rows", kSide}, {"cols", kSide}, {"repetitions", options.repetitions}, {"kernels", kernels}};
  fmt::print("{}\n", result.dump(2));
}

}  // namespace

void PrintOverhead(const Options& options) {
  const Memory memory({kSide, kSide}, options.data);
  const std::vector<Workload> one_thread = MakeWorkloads(memory, {.threads = 1}),
                              chosen = MakeWorkloads(memory, {});
  std::vector<Row> rows;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (!IsWanted(chosen[i], options)) continue;
    rows.push_back({&chosen[i], Repeated(one_thread[i]), Repeated(chosen[i])});
  }
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Row& row : rows) {
      row.one_thread.Sample();
      row.chosen.Sample();
    }
  }
  options.json ? PrintJson(rows, options) : PrintTable(rows);
}

}  // namespace narrowfloat::speed
