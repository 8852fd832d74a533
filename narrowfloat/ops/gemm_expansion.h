// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/layout.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// An operand of a product as bfloat16 items and factors: a value is an item times the factor of
/// its line. A line is a row for rowwise buffers, a column for columnwise ones.
struct OperandExpansion {
  ConstQuantizedView view;
  Direction direction;
  MatrixShape shape;            // of the items as Expand writes them, row-major
  bool rows_are_lines;          // else a row holds one place of every line
  int scale_shift;              // powers of two that leave the block scales for the factors
  std::vector<double> factors;  // one, or one for each line

  std::size_t Lines() const { return rows_are_lines ? shape.rows : shape.cols; }
};

struct ProductExpansion {
  OperandExpansion a, b;

  /// The factor of the whole product, if it is one number.
  std::optional<double> Factor() const;
};

/// Plans the lossless expansion of both operands of a product, or returns nothing where bfloat16
/// and sums in fp32 cannot hold it. Reads the scales.
/// A plan promises: items are normal numbers of bfloat16, zeros, or not finite as the values are;
/// each product of two finite items is zero or a normal number of fp32; no sum of them overflows.
/// So instructions that flush denormals lose nothing, and the errors of the product are those of
/// rounding the sums.
/// Requires: views that Qgemm accepts in these directions.
std::optional<ProductExpansion> PlanExpansion(const ConstQuantizedView& a, Direction a_direction,
                                              const ConstQuantizedView& b, Direction b_direction);

/// Lines of an operand that Expand takes may begin at multiples of this.
inline constexpr std::size_t kExpansionUnit = 128;

/// Writes the items of the lines from `begin` to `end`, bfloat16, C-contiguous: a row of them for
/// each line if rows_are_lines, else a row for each place along the lines.
/// Requires: `begin` is a multiple of kExpansionUnit.
void Expand(const OperandExpansion& operand, std::size_t begin, std::size_t end, std::byte* items,
            const Execution& execution = {});

/// The same for all lines: shape.rows x shape.cols items.
inline void Expand(const OperandExpansion& operand, std::byte* items,
                   const Execution& execution = {}) {
  Expand(operand, 0, operand.Lines(), items, execution);
}

/// Whether this machine has instructions for dot products of bfloat16.
bool HasBFloat16Products();

}  // namespace narrowfloat
