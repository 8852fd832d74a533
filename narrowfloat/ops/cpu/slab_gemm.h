// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "narrowfloat/kernels/gemm_finish.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/cpu/gemm_operand.h"

namespace narrowfloat {

/// Returns the rule for a result of type `out`. Source: TransformerEngine's reference GEMMs;
/// docs/numerics.md, "Products".
GemmRule GemmRuleOf(const SchemeInfo& a, const SchemeInfo& b, DType out, std::optional<DType> bias);

/// Result of a product, and the steps after the sums.
struct GemmResult {
  MatrixRows<std::byte> rows;
  DType dtype;
  bool accumulates;         // the values of `rows` are a term of the sum
  std::vector<float> bias;  // one per column, or empty
  SumStep step{};
};

inline constexpr std::size_t kGemmTileRows = 64, kGemmTileCols = 128;

/// Computes a tile of the product of a's lines with b's lines, at most kGemmTileRows x
/// kGemmTileCols. Each item is the sum over the slabs, in order, of scaled fp32 dot products. Their
/// terms are added in order, with one rounding each. An empty sum is 0, or the value in `result`.
void MultiplyTile(const GemmOperand& a, const GemmOperand& b, const GemmRule& rule,
                  const Tile& tile, const GemmResult& result);

}  // namespace narrowfloat
