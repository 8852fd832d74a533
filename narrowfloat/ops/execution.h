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
  /// Returns the number of threads that tasks run on. With 0, the calling thread runs all tasks.
  virtual std::size_t ThreadCount() const = 0;
  /// Calls task(i) once for each i below `count`, in any order, on any threads; returns when all
  /// are done. A task may throw. If this function throws, the verb ends with the same exception;
  /// outputs then hold unspecified bytes. No task may run after this function has returned or
  /// thrown, because tasks use memory of the call.
  virtual void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& task) = 0;
};

/// Kind of stores for output: normal, non-temporal (for output that is not read again soon), or
/// chosen by its size.
enum class Stores : std::uint8_t { kBySize, kCached, kNontemporal };

/// Options of a verb's execution. Only `noop` and the values in device memory change the result;
/// verbs that quantize or multiply read them. Products of mode kFast depend on other fields too.
struct Execution {
  // For the CPU; every backend reads `noop`.
  int threads = 0;              // 0: the pool's, else NF_NUM_THREADS, else the affinity mask
  ThreadPool* pool = nullptr;   // null: oneTBB
  const float* noop = nullptr;  // points at 1.0f: nothing is written; on the tensors' device
  const KernelTable* kernels = nullptr;  // null: ActiveKernels()
  Stores stores = Stores::kBySize;

  // For CUDA: the stream (a cudaStream_t; null is the default one), and values in device memory,
  // aligned to 4 bytes, which replace the spec's values.
  void* stream = nullptr;
  const float* scale = nullptr;
  const float* amax = nullptr;
  const float* amax_columnwise = nullptr;
  const std::uint64_t* random = nullptr;  // seed and offset of stochastic rounding, 8-byte aligned

  /// Returns the table to use.
  const KernelTable& Kernels() const;

  /// Returns a copy for work on the calling thread alone.
  Execution OnThisThread() const {
    Execution alone = *this;
    alone.threads = 1;
    alone.pool = nullptr;
    return alone;
  }

  /// Returns true if the verb must write nothing: *noop is exactly 1, as in TransformerEngine's
  /// kernels. Requires: noop is in CPU memory.
  bool IsNoop() const { return noop != nullptr && *noop == 1.0f; }
};

/// Returns the number of CPUs in the affinity mask of the calling thread.
std::size_t UsableCpus();

/// Returns the largest number of threads that a call uses. Errors: InvalidArgument if
/// NF_NUM_THREADS is not a number >= 1, or `threads` is negative.
std::size_t ThreadCount(const Execution& execution);

}  // namespace narrowfloat
