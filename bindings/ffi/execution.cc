// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/execution.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "bindings/ffi/shared_work.h"

namespace narrowfloat::xla_ffi {

std::size_t XlaThreadPool::ThreadCount() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(pool_.num_threads(), 1));
}

void XlaThreadPool::ParallelFor(std::size_t count, const std::function<void(std::size_t)>& task) {
  if (count == 0) return;
  RunShared(
      count, std::min(ThreadCount(), count) - 1,
      [&](std::function<void()> assist) { pool_.Schedule(std::move(assist)); }, task);
}

}  // namespace narrowfloat::xla_ffi
