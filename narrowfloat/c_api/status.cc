// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/c_api/status.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace narrowfloat::c_api {
namespace {

constexpr std::size_t kMessageRoom = 2048;
thread_local std::array<char, kMessageRoom> last_error{};

}  // namespace

void SetLastError(const char* message) noexcept {
  const std::string_view text = std::string_view(message).substr(0, kMessageRoom - 1);
  *std::ranges::copy(text, last_error.begin()).out = '\0';
}

const char* LastError() noexcept {
  return last_error.data();
}

}  // namespace narrowfloat::c_api
