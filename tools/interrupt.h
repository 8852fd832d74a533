// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <stdexcept>

namespace narrowfloat::tools {

/// A signal asked the program to stop. Not an error of the library.
class Interrupted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Records SIGINT, SIGTERM and SIGHUP until it is destroyed, instead of ending the process, so that
/// destructors remove temporary files. CheckInterrupt throws after such a signal.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

 private:
  struct sigaction previous_[3];
};

/// Throws Interrupted if a signal was noted.
void CheckInterrupt();

}  // namespace narrowfloat::tools
