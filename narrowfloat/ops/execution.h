// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace narrowfloat {

struct KernelTable;

/// Threads that somebody else owns.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;
  virtual std::size_t ThreadCount() const = 0;
  /// Calls task(i) once for each i below `count`, in any order, on any threads, and returns when
  /// all are done.
  virtual void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& task) = 0;
};

/// How output is written: through the caches, past them (right for what is not read again soon), or
/// by its size.
enum class Stores : std::uint8_t { kBySize, kCached, kStreaming };

/// How a verb runs. None of it changes a byte of the result, but for `noop`.
struct Execution {
  int threads = 0;                       // 0: NF_NUM_THREADS, else the affinity mask
  ThreadPool* pool = nullptr;            // null: oneTBB
  const float* noop = nullptr;           // points at 1.0f: the verb writes nothing
  const KernelTable* kernels = nullptr;  // null: ActiveKernels()
  Stores stores = Stores::kBySize;

  /// Whether the verb is to leave everything as it is: 1 exactly, as TransformerEngine's kernels
  /// ask.
  bool IsNoop() const { return noop != nullptr && *noop == 1.0f; }
};

/// Threads that a call with these settings uses at most. Errors: InvalidArgument if NF_NUM_THREADS
/// is not a number from 1 on, or `threads` is negative.
std::size_t ThreadCount(const Execution& execution);

}  // namespace narrowfloat
