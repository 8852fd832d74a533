// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

namespace narrowfloat::speed {

/// A function that is measured in turns with others, so that other work on the machine slows all of
/// them. Its least time counts.
struct Trial {
  std::function<void()> run;
  std::function<void()> prepare = {};  // before each run, not timed; may be empty
  double seconds = std::numeric_limits<double>::infinity();

  bool HasSample() const { return seconds < std::numeric_limits<double>::infinity(); }

  void Sample() {
    if (prepare) prepare();
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    seconds = std::min(seconds, taken.count());
  }
};

}  // namespace narrowfloat::speed
