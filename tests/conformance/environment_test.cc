// SPDX-License-Identifier: Apache-2.0
// Tests that results do not depend on the caller's floating-point settings, threads and processes.
// ReferenceQuantize computes the expected bytes, so that a process need not call a verb before the
// first call under test.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tbb/parallel_for.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <cmath>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/dequantize.h"
#include "narrowfloat/ops/parallel.h"
#include "narrowfloat/ops/quantize.h"
#include "tests/conformance/float_settings.h"
#include "tests/conformance/reference_dequantize.h"
#include "tests/conformance/reference_quantize.h"
#include "tests/conformance/tensors.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool kForksWork = false;  // ThreadSanitizer does not support forks of threaded processes
#else
constexpr bool kForksWork = true;
#endif

namespace narrowfloat::conformance {
namespace {

/// A tensor, its expected codes under every scheme in both directions, and their float16 values.
class Work {
 public:
  Work() : in_(DType::kFloat32, {198, 314}) {
    std::mt19937_64 random(5);
    FillWithSpecials(in_, random);
    for (const SchemeInfo& scheme : kSchemes) {
      // A tiny scale makes subnormal products. The computed scale would be 1, because the input has
      // infinities.
      QuantSpec spec{.scheme = &scheme, .columnwise = true};
      if (scheme.options.Has(Option::kScale)) spec.scale = 0x1.8p-100f;
      Add(spec);
      if (!scheme.options.Has(Option::kFourOverSix)) continue;
      // With this small amax a reciprocal is subnormal.
      spec.amax = 0x1p-120f;
      Add(spec);
      spec.stochastic_rounding = true;
      Add(spec);
      spec = {.scheme = &scheme, .columnwise = true};
      spec.four_over_six = FourOverSix::kMeanSquaredError;
      Add(spec);
    }
  }

  /// Runs the verbs. Returns the first difference from the expected bytes, or "".
  std::string Check(const Execution& execution) const {
    for (std::size_t i = 0; i < quantized_.size(); ++i) {
      const QuantizedBuffers& expected = quantized_[i];
      QuantizedBuffers got(expected.view.spec, in_.shape());
      Quantize(in_.ConstView(), got.view, execution);
      std::string difference = Difference(expected, got);
      FloatTensor values(DType::kFloat16, in_.shape());
      Dequantize(got.view, values.View(), execution);
      if (difference.empty()) difference = Difference(values_[i], values);
      if (!difference.empty())
        return fmt::format("{}: {}", PrintQuantSpec(expected.view.spec), difference);
    }
    return "";
  }

 private:
  FloatTensor Values(const QuantizedBuffers& quantized) const {
    const Slot slot{quantized.view.spec.scheme, Direction::kRowwise, DType::kFloat16};
    const std::size_t cols = FlattenShape(in_.shape()).cols;
    FloatTensor values(slot.dtype, in_.shape());
    for (std::size_t i = 0; i < values.size(); ++i)
      values.SetBits(i, ReferenceValue(slot, quantized, i / cols, i % cols));
    return values;
  }

  void Add(const QuantSpec& spec) {
    QuantizedBuffers& expected = quantized_.emplace_back(spec, in_.shape());
    ReferenceQuantize(in_, expected);
    values_.push_back(Values(expected));
  }

  FloatTensor in_;
  std::vector<QuantizedBuffers> quantized_;
  std::vector<FloatTensor> values_;
};

const Work& TheWork() {
  static const Work work;
  return work;
}

/// Runs `body` in a child process and returns its result, or a message if the child fails. An alarm
/// ends a child that hangs.
std::string InChild(const std::function<std::string()>& body) {
  int channel[2];
  if (pipe(channel) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    alarm(120);
    const std::string answer = body();
    const bool written = write(channel[1], answer.data(), answer.size()) >= 0;
    _exit(written ? 0 : 1);
  }
  close(channel[1]);
  std::string answer;
  char buffer[512];
  for (ssize_t n = 0; (n = read(channel[0], buffer, sizeof buffer)) > 0;)
    answer.append(buffer, static_cast<std::size_t>(n));
  close(channel[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return fmt::format("the child ended with status {:#x}", status);
  return answer;
}

/// A pool that starts std::threads for each call.
class StdThreads : public ThreadPool {
 public:
  std::size_t ThreadCount() const override { return 3; }
  void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& task) override {
    ++calls;
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ThreadCount(); ++i) {
      threads.emplace_back([&] {
        FloatSettings{FE_UPWARD, true}.Apply();  // a pool's threads may have other settings
        for (std::size_t index = 0; (index = next.fetch_add(1)) < count;) task(index);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int calls = 0;
};

std::string CheckUnder(const FloatSettings& settings, int threads) {
  std::string answer;
  for (const KernelTable* backend : AvailableKernels()) {
    settings.Apply();
    const auto before = FloatControl();
    const std::string difference = TheWork().Check({.threads = threads, .kernels = backend});
    const bool restored = FloatControl() == before;
    FloatSettings{}.Apply();
    if (!difference.empty()) return fmt::format("{}: {}", backend->name, difference);
    if (!restored) return fmt::format("{}: the settings were not restored", backend->name);
  }
  return answer;
}

// The parent has called no verb before it forks. The child's call is therefore the first one, and
// starts the library's threads under the child's settings. Must stay the first test of this file.
TEST(EnvironmentTest, FirstCallUnderAnySettings) {
  if (!kForksWork) GTEST_SKIP() << "needs fork, which this sanitizer does not follow";
  TheWork();
  for (const FloatSettings& settings : AllFloatSettings()) {
    for (const int threads : {1, 3}) {
      EXPECT_EQ(InChild([&] { return CheckUnder(settings, threads); }), "")
          << "rounding " << settings.rounding << ", flush " << settings.flush << ", threads "
          << threads;
      // Threads that start under these settings work for a call under the usual settings.
      EXPECT_EQ(InChild([&] {
                  const std::string first = CheckUnder(settings, threads);
                  return first.empty() ? CheckUnder({}, threads) : first;
                }),
                "");
    }
  }
}

TEST(EnvironmentTest, LaterCallUnderAnySettings) {
  ASSERT_EQ(CheckUnder({}, 3), "");
  for (const FloatSettings& settings : AllFloatSettings()) {
    for (const int threads : {1, 2, 3, 8})
      EXPECT_EQ(CheckUnder(settings, threads), "") << "rounding " << settings.rounding << ", flush "
                                                   << settings.flush << ", threads " << threads;
  }
}

TEST(EnvironmentTest, InsideATaskOfTbb) {
  std::mutex lock;
  std::string answer;
  tbb::parallel_for(0, 16, [&](int) {
    const std::string difference = TheWork().Check({.threads = 3});
    const std::lock_guard guard(lock);
    if (answer.empty()) answer = difference;
  });
  EXPECT_EQ(answer, "");
}

TEST(EnvironmentTest, FromManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::vector<std::string> answers(4);
  for (std::string& answer : answers)
    threads.emplace_back([&answer] { answer = TheWork().Check({.threads = 2}); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& answer : answers) EXPECT_EQ(answer, "");
}

TEST(EnvironmentTest, OnTheCallersPool) {
  StdThreads pool;
  for (const KernelTable* backend : AvailableKernels()) {
    EXPECT_EQ(TheWork().Check({.pool = &pool, .kernels = backend}), "") << backend->name;
  }
  EXPECT_GT(pool.calls, 0) << "the pool was not used";
}

/// Runs one task, then fails.
class FailingPool : public ThreadPool {
 public:
  std::size_t ThreadCount() const override { return 2; }
  void ParallelFor(std::size_t /*count*/, const std::function<void(std::size_t)>& task) override {
    task(0);
    throw std::runtime_error("the pool failed");
  }
};

TEST(EnvironmentTest, WhatAPoolThrowsReachesTheCaller) {
  FailingPool pool;
  EXPECT_THROW(TheWork().Check({.pool = &pool}), std::runtime_error);
  EXPECT_EQ(TheWork().Check({}), "") << "after the failure";
}

std::int64_t ResidentPages() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident;
}

// TBB frees an arena only when a worker enters it. On a busy machine this may not happen between
// two calls.
TEST(EnvironmentTest, CallsInQuickSuccessionLeaveNothingBehind) {
  const auto call = [](int times) {
    for (int i = 0; i < times; ++i) ParallelFor({.threads = 2}, 2, [](std::size_t) {});
  };
  call(100);
  const std::int64_t before = ResidentPages();
  call(20000);
  EXPECT_LT(ResidentPages() - before, 1024) << "pages of 4 KiB";
}

TEST(EnvironmentTest, InAChildForkedAfterAParallelCall) {
  if (!kForksWork) GTEST_SKIP() << "needs fork, which this sanitizer does not follow";
  ASSERT_EQ(TheWork().Check({.threads = 3}), "");
  EXPECT_EQ(InChild([] { return TheWork().Check({.threads = 3}); }), "");
}

}  // namespace
}  // namespace narrowfloat::conformance
