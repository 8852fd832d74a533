// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/ops/execution.h"

namespace narrowfloat::speed {

/// Moves bytes as a kernel of the same traffic must at least: reads `read_bytes`, writes
/// `write_bytes` (0, or in a ratio of 1, 2 or 4 to what is read, either way), and does nothing with
/// them worth mentioning. A kernel's time is compared with this one. Runs on as many threads
/// as `execution` says and with its stores; by size, they are those that are faster.
/// Shapes: both counts a multiple of 1024, both pointers of 64.
void SameTraffic(const std::byte* in, std::size_t read_bytes, std::byte* out,
                 std::size_t write_bytes, const Execution& execution);

}  // namespace narrowfloat::speed
