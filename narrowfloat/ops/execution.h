// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace narrowfloat {

struct KernelTable;

/// Threads supplied by the caller.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;
  virtual std::size_t ThreadCount() const = 0;
  /// Calls task(i) once for each i below `count`, in any order, on any threads; returns when all
  /// are done.
  virtual void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& task) = 0;
};

/// Kind of stores for output: normal, non-temporal (for output that is not read again soon), or
/// chosen by its size.
enum class Stores : std::uint8_t { kBySize, kCached, kNontemporal };

/// Options of how a verb runs. Only `noop` changes the result; verbs that quantize or multiply read
/// it. All others are for the CPU.
struct Execution {
  int threads = 0;              // 0: NF_NUM_THREADS, else the affinity mask
  ThreadPool* pool = nullptr;   // null: oneTBB
  const float* noop = nullptr;  // points at 1.0f: nothing is written; on the tensors' device
  const KernelTable* kernels = nullptr;  // null: ActiveKernels()
  Stores stores = Stores::kBySize;

  /// Returns the table to use.
  const KernelTable& Kernels() const;

  /// Returns true if the verb must write nothing: *noop is exactly 1, as in TransformerEngine's
  /// kernels. Requires: noop is in CPU memory.
  bool IsNoop() const { return noop != nullptr && *noop == 1.0f; }
};

/// Returns the largest number of threads that a call uses. Errors: InvalidArgument if
/// NF_NUM_THREADS is not a number >= 1, or `threads` is negative.
std::size_t ThreadCount(const Execution& execution);

}  // namespace narrowfloat
