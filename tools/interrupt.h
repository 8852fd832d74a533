// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <stdexcept>

namespace narrowfloat::tools {

/// Thrown after a signal to stop the program. Not an error of the library.
class Interrupted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The program has one while a command runs. During its lifetime, SIGINT, SIGTERM and SIGHUP are
/// recorded and do not end the process, so that destructors remove temporary files. CheckInterrupt
/// throws after such a signal.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

 private:
  struct sigaction previous_[3];
};

/// Throws Interrupted if a signal was recorded.
void CheckInterrupt();

}  // namespace narrowfloat::tools
