// SPDX-License-Identifier: Apache-2.0
#include "tools/standard_error.h"

#include <cstdio>

namespace narrowfloat::tools {

void WriteToStderr(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace narrowfloat::tools
