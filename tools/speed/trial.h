// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

namespace narrowfloat::speed {

/// Something that takes turns with others, so that a machine busy with something else slows all;
/// the best of its turns counts.
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
