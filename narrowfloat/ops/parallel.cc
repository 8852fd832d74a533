// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "narrowfloat/tensor/float_environment.h"

namespace narrowfloat {
namespace {

std::atomic<bool> g_used_workers{false};
std::atomic<bool> g_lost_workers{false};

void NoteFork() {
  if (g_used_workers) g_lost_workers = true;
}

void RunSerial(std::size_t count, const std::function<void(std::size_t)>& task) {
  const FloatEnvironment environment;
  for (std::size_t i = 0; i < count; ++i) task(i);
}

/// An arena that one call uses alone: a thread that waits in it runs no task of the caller, so that
/// the caller may hold a lock. Calls reuse the arenas of earlier calls, because TBB frees an arena
/// only when a worker enters it: calls in quick succession would leave thousands, and each slows
/// the next call.
class PooledArena {
 public:
  explicit PooledArena(std::size_t threads) {
    const std::lock_guard lock(Shared().mutex);
    auto& idle = Shared().idle;
    const auto found = std::ranges::find(idle, threads, &Entry::threads);
    if (found != idle.end()) {
      entry_.splice(entry_.begin(), idle, found);
    } else {
      entry_.push_back({threads, std::make_unique<tbb::task_arena>(static_cast<int>(threads))});
    }
  }
  ~PooledArena() {
    const std::lock_guard lock(Shared().mutex);
    Shared().idle.splice(Shared().idle.begin(), entry_);
  }
  PooledArena(const PooledArena&) = delete;
  PooledArena& operator=(const PooledArena&) = delete;

  tbb::task_arena& operator*() const { return *entry_.front().arena; }

 private:
  struct Entry {
    std::size_t threads;
    std::unique_ptr<tbb::task_arena> arena;
  };
  struct ArenaPool {
    std::mutex mutex;
    std::list<Entry> idle;
  };
  static ArenaPool& Shared() {
    static auto& pool = *new ArenaPool;  // never destroyed: threads may run after main ends
    return pool;
  }

  std::list<Entry> entry_;  // one entry; it returns to the pool without an allocation
};

/// Returns how many of `threads` threads, the caller included, the system can start. Tests this by
/// starting them, once for each number above all earlier ones: if TBB cannot start a worker, the
/// call or the process ends with an error.
std::size_t StartableThreads(std::size_t threads) {
  static std::mutex mutex;
  static std::size_t tried = 1, startable = 1;
  const std::lock_guard lock(mutex);
  if (threads <= tried) return std::min(threads, startable);
  std::latch started(1);
  std::vector<std::jthread> others;
  others.reserve(threads - 1);
  try {
    while (others.size() < threads - 1) others.emplace_back([&] { started.wait(); });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): continues with fewer
  }
  started.count_down();
  tried = threads;
  startable = others.size() + 1;
  return startable;
}

void RunOnTbb(std::size_t threads, std::size_t count,
              const std::function<void(std::size_t)>& task) {
  static const int registered = pthread_atfork(nullptr, nullptr, &NoteFork);
  (void)registered;
  g_used_workers = true;
  // TBB starts no more threads than the host program allows, and would warn on stderr.
  const std::size_t allowed =
      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
  const std::size_t startable = StartableThreads(std::min(threads, allowed));
  if (startable <= 1) return RunSerial(count, task);
  const PooledArena arena(startable);
  (*arena).execute([&] {
    tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) {
      const FloatEnvironment environment;
      task(i);
    });
  });
}

}  // namespace

void ParallelFor(const Execution& execution, std::size_t count,
                 const std::function<void(std::size_t)>& task) {
  const std::size_t threads = ThreadCount(execution);
  const bool alone = threads <= 1 || (execution.pool == nullptr && g_lost_workers);
  if (count <= 1 || alone) {
    RunSerial(count, task);
  } else if (execution.pool != nullptr) {
    execution.pool->ParallelFor(count, [&](std::size_t i) {
      const FloatEnvironment environment;
      task(i);
    });
  } else {
    RunOnTbb(threads, count, task);
  }
}

}  // namespace narrowfloat
