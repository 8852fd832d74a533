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
  bool rows_are_lines;          // else a row is one position of every line
  int scale_shift;              // powers of two moved from the block scales to the factors
  std::vector<double> factors;  // one, or one for each line

  std::size_t Lines() const { return rows_are_lines ? shape.rows : shape.cols; }
};

struct ProductExpansion {
  OperandExpansion a, b;

  /// Returns the factor of the whole product, if it is one number.
  std::optional<double> Factor() const;
  /// Returns Factor() if its magnitude is in [2^-126, 2^127), where it is a normal fp32 number.
  std::optional<double> NormalFactor() const;
};

/// Plans the lossless expansion of both operands of a product; returns nullopt if bfloat16 items
/// and sums in fp32 cannot be lossless. Reads the scales.
/// Guarantees of a plan: an item is a normal number of bfloat16 or zero, or NaN or infinity if its
/// value is; a product of two finite items is zero or a normal number of fp32; sums do not
/// overflow. So instructions that flush denormals are exact, and only the rounding of sums causes
/// errors.
/// Requires: views that Qgemm accepts in these directions.
std::optional<ProductExpansion> PlanExpansion(const ConstQuantizedView& a, Direction a_direction,
                                              const ConstQuantizedView& b, Direction b_direction);

/// The first line of a call of Expand is a multiple of this.
inline constexpr std::size_t kExpansionUnit = 128;

/// Writes the items of the lines from `begin` to `end`, bfloat16, C-contiguous: one row per line if
/// rows_are_lines, else one row per position along the lines.
/// Requires: `begin` is a multiple of kExpansionUnit.
void Expand(const OperandExpansion& operand, std::size_t begin, std::size_t end, std::byte* items,
            const Execution& execution = {});

/// Writes all lines: shape.rows x shape.cols items.
inline void Expand(const OperandExpansion& operand, std::byte* items,
                   const Execution& execution = {}) {
  Expand(operand, 0, operand.Lines(), items, execution);
}

/// Returns true if this machine has instructions for dot products of bfloat16.
bool HasBFloat16Products();

}  // namespace narrowfloat
