// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "narrowfloat/ops/bfloat16_multiply.h"
#include "narrowfloat/ops/gemm_driver.h"
#include "narrowfloat/ops/gemm_expansion.h"

namespace narrowfloat {

/// Computes one product through bfloat16: the library multiplies the expanded operands, and the
/// factors, the bias and what accumulates follow in one pass over the sums.
/// Sums are in fp32, in an order of the library's own, which depends on shapes, threads and
/// processor. Memory: the operand of fewer lines as bfloat16; for each thread, 1024 lines of the
/// other one, and 4 MiB of sums unless they are the result.
/// Requires: an expansion of the problem's operands; kernels with GemmKernels.
/// Errors: DeviceError if the library fails. The result is then partly written.
void MultiplyExpanded(const GemmProblem& problem, const ProductExpansion& expansion,
                      BFloat16MultiplyFn multiply, const Execution& execution);

}  // namespace narrowfloat
