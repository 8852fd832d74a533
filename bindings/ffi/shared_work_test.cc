// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/shared_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace narrowfloat::xla_ffi {
namespace {

/// A pool that starts one thread per function, or stores functions, which the test calls later.
class Pool {
 public:
  explicit Pool(bool starts) : starts_(starts) {}
  ~Pool() {
    for (std::thread& thread : threads_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void Schedule(std::function<void()> function) {
    if (starts_) {
      threads_.emplace_back(std::move(function));
    } else {
      late_.push_back(std::move(function));
    }
  }
  std::vector<std::function<void()>>& Late() { return late_; }

 private:
  const bool starts_;
  std::vector<std::thread> threads_;
  std::vector<std::function<void()>> late_;
};

TEST(SharedWorkTest, EveryTaskRunsOnce) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}}) {
    Pool pool(true);
    std::vector<std::atomic<int>> runs(count);
    RunShared(
        count, 3, [&](std::function<void()> f) { pool.Schedule(std::move(f)); },
        [&](std::size_t i) { ++runs[i]; });
    for (const std::atomic<int>& times : runs) EXPECT_EQ(times, 1);
  }
}

TEST(SharedWorkTest, TheCallerNeedsNobodyAndLateComersTouchNothing) {
  Pool pool(false);
  std::vector<std::size_t> runs;
  {
    const std::function<void(std::size_t)> task = [&](std::size_t i) { runs.push_back(i); };
    RunShared(
        7, 2, [&](std::function<void()> f) { pool.Schedule(std::move(f)); }, task);
  }
  const std::vector<std::size_t> in_order{0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(runs, in_order);
  ASSERT_EQ(pool.Late().size(), 2u);
  for (const std::function<void()>& late : pool.Late()) late();  // the task no longer exists
  EXPECT_EQ(runs, in_order);
}

TEST(SharedWorkTest, WhoeverComesBeginsWithTasksFarFromTheCallers) {
  Pool pool(false);
  std::vector<std::size_t> runs;
  RunShared(
      6, 2, [&](std::function<void()> f) { pool.Schedule(std::move(f)); },
      [&](std::size_t i) {
        runs.push_back(i);
        if (i == 0) pool.Late().front()();  // a helper starts while the caller runs its first task
      });
  EXPECT_EQ(runs, (std::vector<std::size_t>{0, 2, 3, 4, 5, 1}));
}

TEST(SharedWorkTest, TheCallerDoesTheTasksOfHelpersThatCannotBeScheduled) {
  Pool pool(true);
  std::atomic<int> runs{0};
  int scheduled = 0;
  RunShared(
      64, 3,
      [&](std::function<void()> f) {
        if (++scheduled == 2) throw std::runtime_error("no thread left");
        pool.Schedule(std::move(f));
      },
      [&](std::size_t) { ++runs; });
  EXPECT_EQ(runs, 64);
  EXPECT_EQ(scheduled, 2);
}

TEST(SharedWorkTest, WhatATaskThrowsReachesTheCallerWhenAllAreDone) {
  for (int repetition = 0; repetition < 50; ++repetition) {
    Pool pool(true);
    std::atomic<int> runs{0};
    std::string message;
    try {
      RunShared(
          64, 3, [&](std::function<void()> f) { pool.Schedule(std::move(f)); },
          [&](std::size_t i) {
            ++runs;
            if (i % 8 == 3) throw std::runtime_error("a task failed");
          });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "a task failed");
    EXPECT_EQ(runs, 64);
  }
}

}  // namespace
}  // namespace narrowfloat::xla_ffi
