// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat {

/// Sets round to nearest, subnormals kept, exceptions masked; the destructor restores the thread's
/// own settings and, on x86, its flags. Every function that parses, compares or computes floats
/// begins with one, and every task body too: a worker thread has the settings of its creator, and
/// XLA's CPU runtime calls with denormals flushed to zero. Functions that only move bytes need
/// none. Both members are out of line, so that no floating-point operation moves across them.
class FloatEnvironment {
 public:
  FloatEnvironment() noexcept;
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace narrowfloat
