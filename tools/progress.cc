// SPDX-License-Identifier: Apache-2.0
#include "tools/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tools/text.h"

namespace narrowfloat::tools {

Progress::Progress(std::string verb, std::uint64_t total_bytes)
    : bar_(std::move(verb), BytesText(static_cast<double>(total_bytes)) + " to read"),
      total_(total_bytes),
      start_(Clock::now()) {}

void Progress::Add(std::uint64_t bytes, std::string_view tensor) {
  worked_ += bytes;
  if (bar_.IsDue()) Draw(tensor);
}

void Progress::Skip(std::uint64_t bytes) {
  skipped_ += bytes;
}

double Progress::Seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void Progress::Draw(std::string_view tensor) {
  const auto total = static_cast<double>(std::max<std::uint64_t>(total_, 1));
  const auto done = static_cast<double>(worked_ + skipped_);
  const double rate = static_cast<double>(worked_) / std::max(Seconds(), 1e-9);
  const double left = (total - done) / std::max(rate, 1.0);
  bar_.Draw(done / total,
            fmt::format("{} of {}, {}/s, {} left", BytesText(done), BytesText(total),
                        BytesText(rate), DurationText(left)),
            tensor);
}

}  // namespace narrowfloat::tools
