// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <stdexcept>

namespace narrowfloat::tools {

/// The user asked to stop. No library error: nothing is wrong.
class Interrupted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// While it lives, SIGINT, SIGTERM and SIGHUP are noted instead of ending the process, so that
/// temporary files go; and a reader of our output that went away is an error of write.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

 private:
  struct sigaction previous_[4];
};

/// Throws Interrupted if a signal was noted.
void CheckInterrupt();

}  // namespace narrowfloat::tools
