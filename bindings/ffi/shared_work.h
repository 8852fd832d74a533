// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace narrowfloat::xla_ffi {

/// Calls task(i) once for each i below `count` and returns when all are done. Each thread begins
/// with a share of adjacent tasks. The calling thread works too. `schedule` runs a function on a
/// pool, and is called up to `assistants` times; if it throws, fewer threads help. A busy pool
/// delays nothing: a helper that starts late finds no remaining task. Catches exceptions of tasks,
/// and rethrows the first one to the caller after all tasks.
void RunShared(std::size_t count, std::size_t assistants,
               const std::function<void(std::function<void()>)>& schedule,
               const std::function<void(std::size_t)>& task);

}  // namespace narrowfloat::xla_ffi
