// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/execution.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>

namespace {

// A machine with 3000 possible CPUs, of which the process may use `g_usable`.
constexpr std::size_t kPossible = 3000;
std::size_t g_usable = 0;

}  // namespace

/// Replaces the function of the C library in this program.
extern "C" int sched_getaffinity(pid_t /*process*/, std::size_t bytes, cpu_set_t* set) noexcept {
  if (8 * bytes < kPossible) {
    errno = EINVAL;
    return -1;
  }
  std::memset(set, 0, bytes);
  for (std::size_t cpu = 0; cpu < g_usable; ++cpu) CPU_SET_S(2 * cpu, bytes, set);
  return 0;
}

namespace narrowfloat {
namespace {

TEST(ExecutionTest, CountsTheCpusOfALargeMachine) {
  for (const std::size_t usable : {1u, 7u, 1400u}) {
    g_usable = usable;
    EXPECT_EQ(UsableCpus(), usable);
  }
}

class NoThreads : public ThreadPool {
  std::size_t ThreadCount() const override { return 0; }
  void ParallelFor(std::size_t /*count*/,
                   const std::function<void(std::size_t)>& /*task*/) override {}
};

TEST(ExecutionTest, TheCallerIsTheOnlyThreadOfAPoolWithoutThreads) {
  NoThreads none;
  EXPECT_EQ(ThreadCount({.pool = &none}), 1u);
}

}  // namespace
}  // namespace narrowfloat
