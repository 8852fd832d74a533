// SPDX-License-Identifier: Apache-2.0
#include "tools/speed/machine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "tools/speed/streams.h"
#include "tools/speed/trial.h"

namespace narrowfloat::speed {
namespace {

constexpr DType kDType = DType::kBFloat16;

// Rows from two tiles to the benches' tensor: 64 MiB of bfloat16, larger than most caches. Grows in
// steps: each step's time predicts the time of the next one.
constexpr std::int64_t kCols = 4096, kFewestRows = 32, kMostRows = 8192, kGrowth = 4;

// Factor by which a step may take longer than its number of elements predicts (it may exceed a
// cache), including time for a few more rounds of the last step.
constexpr double kReserve = 2.5;

// Bytes of Memory per element of two bytes: input, output, codes of both directions, scales.
constexpr std::size_t kBytesPerElement = 7;

using Clock = std::chrono::steady_clock;

struct StreamKind {
  std::string_view name;
  Stores stores;
  bool writes;
};
constexpr StreamKind kStreamKinds[] = {
    {"read", Stores::kCached, false},
    {"copy, plain stores", Stores::kCached, true},
    {"copy, non-temporal stores", Stores::kNontemporal, true},
};

/// Tracks the remaining time, and reports progress.
class Timer {
 public:
  Timer(double budget_seconds, const ProgressFn& progress)
      : budget_(budget_seconds), progress_(progress), start_(Clock::now()) {}

  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  bool Allows(double seconds) const { return Seconds() + seconds < budget_; }
  void Announce(std::string_view next) const { progress_(Seconds() / budget_, next); }

 private:
  double budget_;
  const ProgressFn& progress_;
  Clock::time_point start_;
};

/// Returns true for quantize workloads without options, and for dequantize workloads, rowwise.
bool IsWanted(const Workload& workload) {
  if (workload.verb == Verb::kQuantize) return !workload.HasOptions();
  return workload.verb == Verb::kDequantize && workload.direction == Direction::kRowwise;
}

/// All trials on one tensor.
class SpeedSession {
 public:
  SpeedSession(std::int64_t rows, const Execution& execution)
      : memory_({rows, kCols}, Data::kGaussian, {kDType}) {
    std::vector<std::size_t> thread_counts{1};
    if (ThreadCount(execution) > 1) thread_counts.push_back(ThreadCount(execution));
    for (const StreamKind& kind : kStreamKinds) {
      for (const std::size_t threads : thread_counts) AddStream(kind, threads);
    }
    std::vector<std::vector<Workload>> workloads;
    for (const std::size_t threads : thread_counts)
      workloads.push_back(MakeWorkloads(memory_, On(threads, &ActiveKernels())));
    for (std::size_t i = 0; i < workloads.front().size(); ++i) {
      if (!IsWanted(workloads.front()[i])) continue;
      for (std::size_t j = 0; j < thread_counts.size(); ++j)
        AddKernel(workloads[j][i], thread_counts[j]);
    }
  }

  SpeedSession(const SpeedSession&) = delete;  // trials point into it
  SpeedSession& operator=(const SpeedSession&) = delete;

  /// Samples every trial while time remains. On the smallest tensor, samples every trial at least
  /// once.
  void Round(const Timer& timer) {
    for (auto& [speed, trial] : streams_) {
      timer.Announce(speed.name);
      Sample(trial, timer);
    }
    for (auto& [workload, threads, trial] : rooflines_) {
      timer.Announce("streams");
      Sample(trial, timer);
    }
    for (auto& [speed, trial, roofline, name] : kernels_) {
      timer.Announce(name);
      Sample(trial, timer);
    }
  }

  /// Returns a lower bound of another round's time; infinite if a trial has no sample.
  double RoundSeconds() const {
    double seconds = 0;
    for (const auto& [speed, trial] : streams_) seconds += trial.seconds;
    for (const auto& [workload, threads, trial] : rooflines_) seconds += trial.seconds;
    for (const auto& [speed, trial, roofline, name] : kernels_) seconds += trial.seconds;
    return seconds;
  }

  bool IsComplete() const { return std::isfinite(RoundSeconds()); }

  MachineSpeed Result(const Timer& timer) const {
    MachineSpeed result{memory_.shape(), kDType, {}, {}, timer.Seconds()};
    for (const auto& [speed, trial] : streams_) {
      result.streams.push_back(speed);
      result.streams.back().seconds = trial.seconds;
    }
    for (const auto& [speed, trial, roofline, name] : kernels_) {
      result.kernels.push_back(speed);
      result.kernels.back().seconds = trial.seconds;
      result.kernels.back().stream_seconds = rooflines_[roofline].trial.seconds;
    }
    return result;
  }

 private:
  struct StreamTrial {
    StreamSpeed speed;
    Trial trial;
  };
  /// A stream that moves as many bytes as some kernels; `workload` is one of them.
  struct Roofline {
    Workload workload;
    std::size_t threads;
    Trial trial;
  };
  struct KernelTrial {
    KernelSpeed speed;
    Trial trial;
    std::size_t roofline;  // index into rooflines_
    std::string name;
  };

  static Execution On(std::size_t threads, const KernelTable* kernels) {
    return {.threads = static_cast<int>(threads), .kernels = kernels};
  }

  void Sample(Trial& trial, const Timer& timer) const {
    const bool must = memory_.shape().front() == kFewestRows && !trial.HasSample();
    if (must || timer.Allows(trial.HasSample() ? trial.seconds : 0.0)) trial.Sample();
  }

  void AddStream(const StreamKind& kind, std::size_t threads) {
    const std::size_t read = FlattenShape(memory_.shape()).Size() * ItemSize(kDType);
    const std::size_t written = kind.writes ? read : 0;
    Execution execution = On(threads, nullptr);
    execution.stores = kind.stores;
    streams_.push_back({{kind.name, threads, read + written, 0.0}, {[=, this] {
                          SameTraffic(memory_.StreamIn(), read, memory_.StreamOut(), written,
                                      execution);
                        }}});
  }

  void AddKernel(const Workload& workload, std::size_t threads) {
    const KernelSpeed speed{workload.verb,
                            workload.spec.scheme,
                            workload.direction,
                            threads,
                            workload.Bytes(),
                            0.0,
                            0.0};
    const std::size_t roofline = RooflineOf(workload, threads);
    kernels_.push_back({speed, Trial{workload.run, workload.prepare}, roofline, workload.Name()});
  }

  std::size_t RooflineOf(const Workload& workload, std::size_t threads) {
    const auto found = std::ranges::find_if(rooflines_, [&](const Roofline& roofline) {
      return roofline.threads == threads && roofline.workload.HasTrafficOf(workload);
    });
    if (found != rooflines_.end()) return static_cast<std::size_t>(found - rooflines_.begin());
    const auto run = [=, this] { workload.RunStream(memory_, On(threads, nullptr)); };
    rooflines_.push_back({workload, threads, {run}});
    return rooflines_.size() - 1;
  }

  Memory memory_;
  std::vector<StreamTrial> streams_;
  std::vector<Roofline> rooflines_;
  std::vector<KernelTrial> kernels_;
};

bool HasMemoryFor(std::int64_t rows) {
  const auto free_bytes = static_cast<std::size_t>(::sysconf(_SC_AVPHYS_PAGES)) *
                          static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return static_cast<std::size_t>(rows * kCols) * kBytesPerElement < free_bytes / 4;
}

}  // namespace

MachineSpeed MeasureMachine(const Execution& execution, double budget_seconds,
                            const ProgressFn& progress) {
  const Timer timer(budget_seconds, progress);
  MachineSpeed result;
  for (std::int64_t rows = kFewestRows;; rows *= kGrowth) {
    const double start = timer.Seconds();
    SpeedSession session(rows, execution);
    session.Round(timer);
    if (!session.IsComplete()) return result;  // too slow: returns the previous step's result
    const double next = kReserve * kGrowth * (timer.Seconds() - start);
    const bool last = rows == kMostRows || !timer.Allows(next) || !HasMemoryFor(rows * kGrowth);
    while (last && timer.Allows(session.RoundSeconds() / 2)) session.Round(timer);
    result = session.Result(timer);
    if (last) return result;
  }
}

}  // namespace narrowfloat::speed
