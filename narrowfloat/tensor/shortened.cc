// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/shortened.h"

namespace narrowfloat {

std::string Shortened(std::string_view text) {
  constexpr std::size_t kMaxBytes = 1024;
  if (text.size() <= kMaxBytes) return std::string(text);
  std::size_t end = kMaxBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // UTF-8 tail
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace narrowfloat
