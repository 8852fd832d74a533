// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

namespace narrowfloat::speed {

/// A function that is measured in turns with others, so that other work on the machine slows down
/// all of them. The smallest time is the result.
struct Trial {
  std::function<void()> run;
  std::function<void()> prepare = {};  // called before each run, not timed; may be empty
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
