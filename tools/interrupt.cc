// SPDX-License-Identifier: Apache-2.0
#include "tools/interrupt.h"

#include <cstddef>
#include <iterator>
#include <type_traits>

namespace narrowfloat::tools {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t g_interrupted = 0;

extern "C" void NoteInterrupt(int /*signal*/) {
  g_interrupted = 1;
}

}  // namespace

InterruptScope::InterruptScope() {
  static_assert(std::extent_v<decltype(previous_)> == std::size(kSignals));
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction action {};
    action.sa_handler = NoteInterrupt;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(kSignals[i], nullptr, &previous_[i]);
    // A caller such as nohup ignores the signal on purpose.
    if (previous_[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    ::sigaction(kSignals[i], &previous_[i], nullptr);
  }
}

void CheckInterrupt() {
  if (g_interrupted != 0) throw Interrupted("interrupted");
}

}  // namespace narrowfloat::tools
