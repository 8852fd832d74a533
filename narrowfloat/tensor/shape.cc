// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {

MatrixShape FlattenShape(const Shape& shape) {
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  std::int64_t elements = 1;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) {
      throw InvalidArgument(
          fmt::format("shape: dimensions must not be negative, got {}", ShapeText(shape)));
    }
    if (!empty && elements > kMaxElements / dimension) {
      throw InvalidArgument(
          fmt::format("shape: {} has more elements than memory can address", ShapeText(shape)));
    }
    elements *= empty ? 1 : dimension;
  }
  if (shape.empty()) return {1, 1};
  const auto cols = static_cast<std::size_t>(shape.back());
  if (!empty) return {static_cast<std::size_t>(elements) / cols, cols};
  const bool no_rows = std::find(shape.begin(), shape.end() - 1, 0) != shape.end() - 1;
  std::size_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.size() && !no_rows; ++i) {
    if (rows > static_cast<std::size_t>(kMaxElements / shape[i])) {
      throw InvalidArgument(
          fmt::format("shape: {} has more rows than memory can address", ShapeText(shape)));
    }
    rows *= static_cast<std::size_t>(shape[i]);
  }
  return {no_rows ? 0 : rows, cols};
}

std::string ShapeText(const Shape& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace narrowfloat
