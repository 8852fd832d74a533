// SPDX-License-Identifier: Apache-2.0
#include "tools/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tools/text.h"

namespace narrowfloat::tools {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kLine = std::chrono::seconds(5);
constexpr std::size_t kBarWidth = 24;

std::size_t TerminalWidth() {
  struct winsize size {};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(std::string verb, std::uint64_t total_bytes)
    : verb_(std::move(verb)),
      total_(total_bytes),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {
  if (!terminal_) {
    fmt::print(stderr, "{}: {} to read\n", verb_, BytesText(static_cast<double>(total_)));
    std::fflush(stderr);
  }
}

Progress::~Progress() {
  if (terminal_) std::fputs("\r\033[K", stderr);  // the result takes the bar's place
}

void Progress::Add(std::uint64_t bytes, std::string_view tensor) {
  worked_ += bytes;
  const Clock::time_point now = Clock::now();
  if (now - last_ < (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLine))) return;
  last_ = now;
  Draw(tensor);
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
  const std::string numbers =
      fmt::format("{:3.0f}% {} of {}, {}/s, {} left", 100 * std::min(done / total, 1.0),
                  BytesText(done), BytesText(total), BytesText(rate), DurationText(left));
  if (!terminal_) {
    fmt::print(stderr, "{}: {}, {}\n", verb_, numbers, tensor);
  } else {
    const auto filled = static_cast<std::size_t>(kBarWidth * std::min(done / total, 1.0));
    std::string line = fmt::format("{} [{:#<{}}{:.<{}}] {} {}", verb_, "", filled, "",
                                   kBarWidth - filled, numbers, tensor);
    line.resize(std::min(line.size(), TerminalWidth() - 1));
    fmt::print(stderr, "\r\033[K{}", line);
  }
  std::fflush(stderr);
}

}  // namespace narrowfloat::tools
