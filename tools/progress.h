// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/progress_bar.h"

namespace narrowfloat::tools {

/// Prints a job's progress to standard error: the bytes that are done, and the rate.
class Progress {
 public:
  Progress(std::string verb, std::uint64_t total_bytes);

  /// Counts bytes that were read; `tensor` is the name of their tensor.
  void Add(std::uint64_t bytes, std::string_view tensor);

  /// Counts bytes that need no work. The rate does not include them.
  void Skip(std::uint64_t bytes);

  std::uint64_t worked_bytes() const { return worked_; }
  double Seconds() const;

 private:
  void Draw(std::string_view tensor);

  using Clock = std::chrono::steady_clock;
  ProgressBar bar_;
  std::uint64_t total_, worked_ = 0, skipped_ = 0;
  Clock::time_point start_;
};

}  // namespace narrowfloat::tools
