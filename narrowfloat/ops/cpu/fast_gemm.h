// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/cpu/bfloat16_multiply.h"
#include "narrowfloat/ops/cpu/gemm_driver.h"
#include "narrowfloat/ops/gemm_expansion.h"

namespace narrowfloat {

/// Computes one product through bfloat16: oneDNN multiplies the expanded operands; factors, bias
/// and the accumulated term are applied in one pass over the sums.
/// Sums are in fp32, in oneDNN's order, which depends on shapes, threads and processor.
/// Memory: the operand with fewer lines as bfloat16; for each thread, 1024 lines of the other
/// operand, and 4 MiB of sums unless the sums are the result.
/// Requires: an expansion of the problem's operands; kernels with GemmKernels.
/// Errors: DeviceError if oneDNN fails. The result is then partly written.
void MultiplyExpanded(const GemmProblem& problem, const ProductExpansion& expansion,
                      BFloat16MultiplyFn multiply, const Execution& execution);

}  // namespace narrowfloat
