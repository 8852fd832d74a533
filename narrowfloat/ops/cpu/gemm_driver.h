// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "narrowfloat/ops/cpu/gemm_operand.h"
#include "narrowfloat/ops/cpu/slab_gemm.h"
#include "narrowfloat/ops/execution.h"

namespace narrowfloat {

/// One checked product. Requires: operands of one length, slab and element width; a result of
/// a.lines x b.lines.
struct GemmProblem {
  const StoredOperand &a, &b;
  GemmRule rule;
  const GemmResult& result;
};

/// Computes independent products, by the micro-kernels of the execution's table or, if it has none,
/// by MultiplyTile. The bytes are the same either way.
/// Memory: panels of `a` of kGemmPanelBytes, or one panel if that is larger, and a scratch of at
/// most about 0.5 MiB for each thread. Codes of `a` are decoded once, codes of `b` once for each
/// task's rows of `a`, at most 768.
void MultiplyAll(std::span<const GemmProblem> problems, const Execution& execution);

inline constexpr std::size_t kGemmPanelBytes = std::size_t{8} << 20;

}  // namespace narrowfloat
