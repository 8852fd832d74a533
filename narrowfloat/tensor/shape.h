// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace narrowfloat {

using Shape = std::vector<std::int64_t>;

/// A tensor seen as a matrix: rows is the product of all dimensions but the last, cols the last
/// one.
struct MatrixShape {
  std::size_t rows, cols;
  constexpr std::size_t Size() const { return rows * cols; }
  constexpr bool operator==(const MatrixShape&) const = default;
};

constexpr std::size_t CeilDiv(std::size_t a, std::size_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}
constexpr std::size_t RoundUp(std::size_t a, std::size_t multiple) {
  return CeilDiv(a, multiple) * multiple;
}

/// Largest number of elements of a tensor, or of all groups; 63 bits hold 8 bytes for each.
inline constexpr std::int64_t kMaxElements = INT64_MAX / 8;

/// Flattens to rows x cols; a scalar is 1x1, a vector of n is 1xn.
/// Errors: InvalidArgument if a dimension is negative, if the elements are more than kMaxElements,
/// or if an empty tensor's rows are.
MatrixShape FlattenShape(const Shape& shape);

/// Returns "2x3x20"; "scalar" for rank 0.
std::string ShapeText(const Shape& shape);

}  // namespace narrowfloat
