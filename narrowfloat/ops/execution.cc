// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/execution.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <thread>
#include <vector>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

std::size_t EnvironmentCount() {
  const char* text = std::getenv("NF_NUM_THREADS");
  if (text == nullptr || *text == '\0') return 0;
  const std::string_view view(text);
  int count = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), count);
  if (error != std::errc{} || end != view.data() + view.size() || count < 1) {
    throw InvalidArgument(
        fmt::format("threads: NF_NUM_THREADS must be an integer from 1 to {}, got '{}'",
                    std::numeric_limits<int>::max(), view));
  }
  return static_cast<std::size_t>(count);
}

}  // namespace

std::size_t UsableCpus() {
  cpu_set_t set;  // of 1024 CPUs
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
  // Linux refuses sets that are smaller than its own, which has every CPU that may be added.
  constexpr std::size_t kMostSets = 64;
  for (std::size_t sets = 2; sets <= kMostSets; sets *= 2) {
    std::vector<cpu_set_t> wide(sets);
    const std::size_t bytes = sets * sizeof set;
    if (sched_getaffinity(0, bytes, wide.data()) == 0)
      return static_cast<std::size_t>(std::max(1, CPU_COUNT_S(bytes, wide.data())));
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

std::size_t ThreadCount(const Execution& execution) {
  if (execution.threads < 0) {
    throw InvalidArgument(fmt::format("threads: must be 0 (choose) or a number of threads, got {}",
                                      execution.threads));
  }
  if (execution.threads > 0) return static_cast<std::size_t>(execution.threads);
  const std::size_t environment = EnvironmentCount();
  if (execution.pool != nullptr) return std::max<std::size_t>(execution.pool->ThreadCount(), 1);
  return environment > 0 ? environment : UsableCpus();
}

}  // namespace narrowfloat
