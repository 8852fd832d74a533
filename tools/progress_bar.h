// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace narrowfloat::tools {

/// Shows the progress of a command on standard error: on a terminal as a bar, which is erased at
/// the end; otherwise as a line from time to time.
class ProgressBar {
 public:
  /// Prints the coming work if no bar can be drawn: "quantize: 3.22 GB to read".
  ProgressBar(std::string verb, std::string_view to_come);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  /// Returns whether the next drawing is due.
  bool IsDue() const;

  /// Draws the completed share from 0 to 1, as figures and as a bar, and the current subject, which
  /// is escaped because it comes from a file.
  void Draw(double share, std::string_view figures, std::string_view subject);

 private:
  using Clock = std::chrono::steady_clock;
  std::string verb_;
  bool terminal_;
  Clock::time_point last_;
};

}  // namespace narrowfloat::tools
