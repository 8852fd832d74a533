// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "narrowfloat/ops/execution.h"

namespace narrowfloat {

/// Calls task(i) once for each i below `count`, each under a FloatEnvironment, on the caller's pool
/// or on oneTBB; returns when all are done. Runs on the calling thread alone for one task or one
/// thread, if the system cannot start another thread, and in a child forked after a parallel call:
/// worker threads do not exist after a fork. If a task throws, throws its exception after all
/// running tasks have ended; tasks that have not begun may never run.
void ParallelFor(const Execution& execution, std::size_t count,
                 const std::function<void(std::size_t)>& task);

}  // namespace narrowfloat
