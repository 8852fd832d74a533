// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace narrowfloat::tools {

/// Shows the progress of a command on standard error: on a terminal as a bar, which is erased at
/// the end, elsewhere as a line from time to time.
class ProgressBar {
 public:
  /// Says what is to come where no bar can be drawn: "quantize: 3.22 GB to read".
  ProgressBar(std::string verb, std::string_view to_come);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  /// Returns whether it is time to draw again.
  bool IsDue() const;

  /// Shows the share from 0 to 1 that is done, in figures and as a bar, and what is being done.
  /// A subject comes from a file and is escaped.
  void Draw(double share, std::string_view figures, std::string_view subject);

 private:
  using Clock = std::chrono::steady_clock;
  std::string verb_;
  bool terminal_;
  Clock::time_point last_;
};

}  // namespace narrowfloat::tools
