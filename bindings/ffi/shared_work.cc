// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/shared_work.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

namespace narrowfloat::xla_ffi {
namespace {

/// State shared by the caller and its helpers; the last owner frees it. `task` is valid only until
/// the caller's Wait() returns.
class Work {
 public:
  Work(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& task)
      : count_(count), task_(&task), shares_(threads) {
    for (std::size_t i = 0; i < threads; ++i) {
      shares_[i].next = i * count / threads;
      shares_[i].end = (i + 1) * count / threads;
    }
  }

  /// Runs the thread's own share in order, then remaining tasks of other shares.
  void Run() noexcept {
    const std::size_t first = arrived_.fetch_add(1);
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      RunShare(shares_[(first + i) % shares_.size()]);
    }
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [&] { return done_.load() >= count_; });
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  /// A range of adjacent tasks: a kernel prefetches the next tile of its thread.
  struct Share {
    std::atomic<std::size_t> next;
    std::size_t end;
  };

  void RunShare(Share& share) noexcept {
    for (std::size_t i; (i = share.next.fetch_add(1)) < share.end;) {
      try {
        (*task_)(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!thrown_) thrown_ = std::current_exception();
      }
      if (done_.fetch_add(1) + 1 < count_) continue;
      const std::lock_guard lock(mutex_);
      all_done_.notify_all();
    }
  }

  const std::size_t count_;
  const std::function<void(std::size_t)>* const task_;
  std::vector<Share> shares_;
  std::atomic<std::size_t> arrived_{0}, done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::exception_ptr thrown_;
};

}  // namespace

void RunShared(std::size_t count, std::size_t assistants,
               const std::function<void(std::function<void()>)>& schedule,
               const std::function<void(std::size_t)>& task) {
  const auto work = std::make_shared<Work>(count, assistants + 1, task);
  try {
    for (std::size_t i = 0; i < assistants; ++i) schedule([work] { work->Run(); });
  } catch (...) {  // the caller runs the tasks of missing helpers; scheduled ones may already run
  }
  work->Run();
  work->Wait();
}

}  // namespace narrowfloat::xla_ffi
