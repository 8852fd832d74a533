// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/speed/workload.h"

namespace narrowfloat::speed {

/// Speed of a plain loop over memory.
struct StreamSpeed {
  std::string_view name;
  std::size_t threads;
  std::size_t bytes;  // read and written
  double seconds;
};

/// Speed of a kernel, and of a stream of the same bytes on the same number of threads.
struct KernelSpeed {
  Verb verb;
  const SchemeInfo* scheme;
  Direction direction;
  std::size_t threads;
  std::size_t bytes;
  double seconds, stream_seconds;
};

struct MachineSpeed {
  Shape shape;  // of the measured tensor
  DType dtype;
  std::vector<StreamSpeed> streams;
  std::vector<KernelSpeed> kernels;  // grouped by verb, scheme and direction
  double seconds;                    // duration of all measurements
};

/// Receives the used share of the time, and the name of the next measurement. May throw to end the
/// measurements.
using ProgressFn = std::function<void(double share, std::string_view next)>;

/// Measures every scheme of the registry on one thread and on the threads of `execution`, within
/// `budget_seconds`. Uses a smaller tensor on a slow machine, or with little free memory.
MachineSpeed MeasureMachine(const Execution& execution, double budget_seconds,
                            const ProgressFn& progress);

}  // namespace narrowfloat::speed
