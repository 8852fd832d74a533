// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/options.h"
#include "tools/speed/trial.h"

namespace narrowfloat::speed {
namespace {

constexpr int kFewestBits = 12, kMostBits = 24;  // of the number of elements

// A turn is so many calls that the clock does not matter beside them.
constexpr double kTurnSeconds = 200e-6;

// Less is noise: a tensor of one tile runs on one thread in any case, and shows how much there is.
constexpr double kFaster = 1.05;

struct Row {
  std::string name, backend;
  std::vector<double> speedups;  // by size, smallest first

  /// Returns the index of the smallest size from which on many threads are always faster; the
  /// number of sizes, if they never are.
  std::size_t From() const {
    std::size_t from = speedups.size();
    while (from > 0 && speedups[from - 1] > kFaster) --from;
    return from;
  }
};

std::size_t Elements(std::size_t index) {
  return std::size_t{1} << (static_cast<std::size_t>(kFewestBits) + index);
}

/// Returns the shape with 2^bits elements that is nearest to a square.
Shape ShapeOf(int bits) {
  return {std::int64_t{1} << (bits / 2), std::int64_t{1} << ((bits + 1) / 2)};
}

/// Returns how many times as fast `many` is as `few`, measured in turns.
double Speedup(const Workload& few, const Workload& many, int repetitions) {
  Trial once{few.run};
  for (int i = 0; i < 3; ++i) once.Sample();  // the first ones fetch code and data
  const int calls = static_cast<int>(std::ceil(kTurnSeconds / once.seconds));
  const auto repeat = [calls](const Workload& workload) {
    return Trial{[calls, &workload] {
      for (int i = 0; i < calls; ++i) workload.run();
    }};
  };
  Trial slow = repeat(few), fast = repeat(many);
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    slow.Sample();
    fast.Sample();
  }
  return slow.seconds / fast.seconds;
}

std::vector<Row> Measure(const Options& options) {
  std::vector<Row> rows;
  for (int bits = kFewestBits; bits <= kMostBits; ++bits) {
    const Memory memory(ShapeOf(bits), options.data);
    const std::vector<Workload> few = MakeWorkloads(memory, {.threads = options.threads}),
                                many = MakeWorkloads(memory, {.threads = options.compare_threads});
    std::size_t next = 0;
    for (std::size_t i = 0; i < few.size(); ++i) {
      if (!IsWanted(few[i], options)) continue;
      if (next == rows.size()) rows.push_back({few[i].Name(), std::string(few[i].backend), {}});
      rows[next++].speedups.push_back(Speedup(few[i], many[i], options.repetitions));
    }
  }
  return rows;
}

void PrintTable(const std::vector<Row>& rows, const Options& options) {
  fmt::print("times as fast on {} threads as on {}, by the number of elements\n\n",
             options.compare_threads, options.threads);
  fmt::print("{:<52} {:<8} {:>6}", "kernel", "backend", "from");
  for (int bits = kFewestBits; bits <= kMostBits; ++bits)
    fmt::print(" {:>5}", fmt::format("2^{}", bits));
  fmt::print("\n");
  for (const Row& row : rows) {
    const std::size_t from = row.From();
    const bool never = from == row.speedups.size();
    fmt::print("{:<52} {:<8} {:>6}", row.name, row.backend,
               never ? "never" : fmt::format("2^{}", static_cast<std::size_t>(kFewestBits) + from));
    for (const double speedup : row.speedups) fmt::print(" {:>5.2f}", speedup);
    fmt::print("\n");
  }
}

void PrintJson(const std::vector<Row>& rows, const Options& options) {
  nlohmann::json kernels = nlohmann::json::array(), sizes = nlohmann::json::array();
  for (int bits = kFewestBits; bits <= kMostBits; ++bits) sizes.push_back(std::int64_t{1} << bits);
  for (const Row& row : rows) {
    const std::size_t from = row.From();
    kernels.push_back({{"kernel", row.name},
                       {"backend", row.backend},
                       {"from", from == row.speedups.size() ? nlohmann::json(nullptr)
                                                            : nlohmann::json(Elements(from))},
                       {"speedups", row.speedups}});
  }
  const nlohmann::json result{{"elements", sizes},
                              {"threads", options.threads},
                              {"compare_threads", options.compare_threads},
                              {"repetitions", options.repetitions},
                              {"kernels", kernels}};
  fmt::print("{}\n", result.dump(2));
}

}  // namespace

void PrintCrossover(const Options& options) {
  const std::vector<Row> rows = Measure(options);
  options.json ? PrintJson(rows, options) : PrintTable(rows, options);
}

}  // namespace narrowfloat::speed
