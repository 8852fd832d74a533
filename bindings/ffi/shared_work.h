// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace narrowfloat::xla_ffi {

/// Calls task(i) once for each i below `count` and returns when all are done. Each thread begins
/// with a share of tasks that follow each other. The calling thread works; `schedule` puts a
/// function on some pool, up to `assistants` times, for others to help. A pool without an idle
/// thread delays nothing: who comes late finds nothing left to do. What tasks throw stays within;
/// the first of it is thrown to the caller once all are done.
void RunShared(std::size_t count, std::size_t assistants,
               const std::function<void(std::function<void()>)>& schedule,
               const std::function<void(std::size_t)>& task);

}  // namespace narrowfloat::xla_ffi
