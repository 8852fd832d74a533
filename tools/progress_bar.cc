// SPDX-License-Identifier: Apache-2.0
#include "tools/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tools/standard_error.h"
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

ProgressBar::ProgressBar(std::string verb, std::string_view to_come)
    : verb_(std::move(verb)), terminal_(::isatty(STDERR_FILENO) == 1), last_(Clock::now()) {
  if (!terminal_) {
    PrintToStderr("{}: {}\n", verb_, to_come);
  }
}

ProgressBar::~ProgressBar() {
  if (terminal_) WriteToStderr("\r\033[K");  // erases the bar before the result is printed
}

bool ProgressBar::IsDue() const {
  return Clock::now() - last_ >= (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLine));
}

void ProgressBar::Draw(double share, std::string_view figures, std::string_view subject) {
  last_ = Clock::now();
  share = std::clamp(share, 0.0, 1.0);
  const std::string numbers = fmt::format("{:3.0f}% {}", 100 * share, figures);
  if (!terminal_) {
    PrintToStderr("{}: {}, {}\n", verb_, numbers, Escaped(subject));
  } else {
    const auto filled = static_cast<std::size_t>(kBarWidth * share);
    std::string line = fmt::format("{} [{:#<{}}{:.<{}}] {} {}", verb_, "", filled, "",
                                   kBarWidth - filled, numbers, Escaped(subject));
    line.resize(std::min(line.size(), TerminalWidth() - 1));
    PrintToStderr("\r\033[K{}", line);
  }
}

}  // namespace narrowfloat::tools
