// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/execution.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

std::size_t AffinityCount() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
}

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

std::size_t ThreadCount(const Execution& execution) {
  if (execution.threads < 0) {
    throw InvalidArgument(fmt::format("threads: must be 0 (choose) or a number of threads, got {}",
                                      execution.threads));
  }
  if (execution.threads > 0) return static_cast<std::size_t>(execution.threads);
  const std::size_t environment = EnvironmentCount();
  if (execution.pool != nullptr) return execution.pool->ThreadCount();
  return environment > 0 ? environment : AffinityCount();
}

}  // namespace narrowfloat
