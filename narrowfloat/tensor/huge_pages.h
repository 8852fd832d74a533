// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace narrowfloat {

/// Bytes of a huge page, which is also its alignment.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Advises the operating system to use huge pages for each complete one within `bytes` at `memory`.
/// A system without huge pages ignores the advice. The advice changes only the speed.
void AdviseHugePages(std::byte* memory, std::size_t bytes);

}  // namespace narrowfloat
