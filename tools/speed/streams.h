// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "narrowfloat/ops/execution.h"

namespace narrowfloat::speed {

/// Moves the minimum bytes of a kernel with the same traffic, for comparison with its time: reads
/// `read_bytes`, writes `write_bytes` (0, or 1, 2 or 4 times, or that fraction of, the bytes read),
/// and computes almost nothing. Runs on the threads of `execution` and with its stores; kBySize
/// selects the faster stores.
/// Shapes: both counts a multiple of 1024, both pointers of 64.
void SameTraffic(const std::byte* in, std::size_t read_bytes, std::byte* out,
                 std::size_t write_bytes, const Execution& execution);

}  // namespace narrowfloat::speed
