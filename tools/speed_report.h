// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tools/command.h"

namespace narrowfloat::tools {

/// Measures this machine for about five seconds, on one thread and on `threads` (0: all threads of
/// the affinity mask), with progress on standard error. The text has a table for the memory and one
/// for the kernels. Errors: Interrupted.
Result SpeedReport(int threads);

}  // namespace narrowfloat::tools
