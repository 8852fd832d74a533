// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat {

/// Round to nearest, subnormals kept, exceptions masked, for as long as it lives; then the thread's
/// own settings and flags again. Stands at the entry of every verb and of every task body: a worker
/// thread keeps the settings of whoever first started it, and XLA's CPU runtime calls with
/// denormals flushed to zero. Both members are out of line, so that no floating-point operation
/// moves across them.
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
