// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat {

/// Sets round to nearest, no flush to zero, masked exceptions. The destructor restores the thread's
/// settings and, on x86, its flags. Every function that parses, compares or computes floats begins
/// with a FloatEnvironment, and so does every task body: a worker thread has its creator's
/// settings, and XLA's CPU runtime flushes denormals to zero. Functions that only move bytes need
/// none. Both members are out of line: no floating-point operation can move across them.
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
