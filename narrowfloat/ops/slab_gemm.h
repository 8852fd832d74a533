// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "narrowfloat/kernels/gemm_finish.h"
#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/ops/gemm_operand.h"

namespace narrowfloat {

/// Whether tensors of these schemes can be multiplied: slabs of one length under scales of one
/// type.
bool AreOfOneFamily(const SchemeInfo& a, const SchemeInfo& b);

/// The rule for a result of type `out`. Source: TransformerEngine's reference GEMMs, numerics
/// specification section 11.
GemmRule RuleOf(const SchemeInfo& a, const SchemeInfo& b, DType out, std::optional<DType> bias);

/// Result of a product, and what follows the sums.
struct GemmResult {
  MatrixRows<std::byte> rows;
  DType dtype;
  bool accumulates;         // what `rows` holds is a term of the sum
  std::vector<float> bias;  // one a column, or none
  SumStep step{};
};

inline constexpr std::size_t kGemmTileRows = 64, kGemmTileCols = 128;

/// Computes a tile, of that size at most, of the product of a's lines with b's lines.
/// Each item is the sum over the slabs, in order, of fp32 dot products whose items are added in
/// order, one rounding each. A sum of nothing is 0, or what `result` holds.
void MultiplyTile(const GemmOperand& a, const GemmOperand& b, const GemmRule& rule,
                  const Tile& tile, const GemmResult& result);

}  // namespace narrowfloat
