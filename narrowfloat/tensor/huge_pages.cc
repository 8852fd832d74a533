// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace narrowfloat {

void AdviseHugePages(std::byte* memory, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::size_t skipped = (kHugePage - address % kHugePage) % kHugePage;
  if (bytes < skipped + kHugePage) return;
  const std::size_t length = (bytes - skipped) / kHugePage * kHugePage;
  (void)madvise(memory + skipped, length, MADV_HUGEPAGE);
}

}  // namespace narrowfloat
