// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/speed/workload.h"

namespace narrowfloat::speed {

/// What the memory gives to a plain loop.
struct StreamSpeed {
  std::string_view name;
  std::size_t threads;
  std::size_t bytes;  // read and written
  double seconds;
};

/// What a kernel reaches, and the stream of the same bytes on as many threads.
struct KernelSpeed {
  Verb verb;
  const SchemeInfo* scheme;
  Direction direction;
  std::size_t threads;
  std::size_t bytes;
  double seconds, stream_seconds;
};

struct MachineSpeed {
  Shape shape;  // of the tensor of dtype
  DType dtype;
  std::vector<StreamSpeed> streams;
  std::vector<KernelSpeed> kernels;  // of one verb, scheme and direction next to each other
  double seconds;                    // that all of this took
};

/// How much of the time is used up, and what is measured next. May throw to end it all.
using Watcher = std::function<void(double share, std::string_view next)>;

/// Measures every scheme of the registry on one thread and on as many as `execution` says, within
/// `budget_seconds`: on a slow machine, or one with little memory left, on a smaller tensor.
MachineSpeed MeasureMachine(const Execution& execution, double budget_seconds,
                            const Watcher& watcher);

}  // namespace narrowfloat::speed
