// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/view_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <vector>

#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

template <class Byte>
void CheckHasData(std::string_view verb, std::string_view name, const BasicTensorView<Byte>& view) {
  if (view.data != nullptr || FlattenShape(view.shape).Size() == 0) return;
  throw InvalidArgument(
      fmt::format("{}: {} must have data for its elements, got a null pointer", verb, name));
}

/// A dimension of more than one row.
struct RowDimension {
  std::int64_t rows;
  std::ptrdiff_t stride;  // in bytes
};

/// Checks that each stride is at least the bytes that a row and the shorter strides span, so that
/// rows do not overlap. Also rejects rows that interleave without overlapping.
void CheckRowsAreApart(std::string_view verb, std::string_view name, std::ptrdiff_t row,
                       std::vector<RowDimension>& dimensions) {
  std::ranges::sort(dimensions, {}, [](const RowDimension& d) { return std::abs(d.stride); });
  std::ptrdiff_t reach = row;
  for (const RowDimension& dimension : dimensions) {
    const std::ptrdiff_t stride = std::abs(dimension.stride);
    if (stride < reach) {
      throw InvalidArgument(fmt::format(
          "{}: {} must have rows that do not overlap, got rows of {} bytes and a stride "
          "of {}",
          verb, name, reach, dimension.stride));
    }
    reach += stride * (dimension.rows - 1);
  }
}

/// Checks the strides of dimensions of more than one row.
template <class Byte>
void CheckStrides(std::string_view verb, std::string_view name, const BasicTensorView<Byte>& view) {
  const auto row = view.shape.back() * static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
  std::ptrdiff_t reach = row;
  std::vector<RowDimension> dimensions;
  for (std::size_t i = 0; i + 1 < view.shape.size(); ++i) {
    if (view.shape[i] == 1) continue;
    const std::ptrdiff_t stride = view.strides[i];
    std::ptrdiff_t span = 0;
    if (stride == std::numeric_limits<std::ptrdiff_t>::min() ||
        __builtin_mul_overflow(std::abs(stride), view.shape[i] - 1, &span) ||
        __builtin_add_overflow(reach, span, &reach)) {
      throw InvalidArgument(fmt::format("{}: {} must lie within memory, got a stride of {} bytes",
                                        verb, name, stride));
    }
    if constexpr (!std::is_const_v<Byte>) dimensions.push_back({view.shape[i], stride});
  }
  CheckRowsAreApart(verb, name, row, dimensions);
}

}  // namespace

template <class Byte>
void CheckRows(std::string_view verb, std::string_view name, const BasicTensorView<Byte>& view) {
  if (!IsFloat(view.dtype)) {
    throw InvalidArgument(fmt::format("{}: {} must be float32, float16 or bfloat16, got {}", verb,
                                      name, DTypeName(view.dtype)));
  }
  const bool dense = view.strides.empty();
  if (!dense && view.strides.size() != view.shape.size()) {
    throw InvalidArgument(fmt::format("{}: {} must have one stride per dimension, got {} for {}",
                                      verb, name, view.strides.size(), view.shape.size()));
  }
  const MatrixShape matrix = FlattenShape(view.shape);
  if (matrix.Size() == 0) return;
  CheckHasData(verb, name, view);
  if (dense) return;
  if (matrix.cols > 1 && view.strides.back() != static_cast<std::ptrdiff_t>(ItemSize(view.dtype))) {
    throw InvalidArgument(fmt::format(
        "{}: {} must have adjacent items in its last dimension, got a stride of {} bytes", verb,
        name, view.strides.back()));
  }
  CheckStrides(verb, name, view);
}

template void CheckRows(std::string_view, std::string_view, const TensorView&);
template void CheckRows(std::string_view, std::string_view, const ConstTensorView&);

template <class Byte>
void CheckDense(std::string_view verb, std::string_view name, const BasicTensorView<Byte>& view,
                DType dtype, const Shape& shape) {
  if (view.dtype != dtype || view.shape != shape || !IsContiguous(view)) {
    throw InvalidArgument(fmt::format(
        "{}: {} must be contiguous {} of shape {}, got {} of shape {}", verb, name,
        DTypeName(dtype), ShapeText(shape), DTypeName(view.dtype), ShapeText(view.shape)));
  }
  CheckHasData(verb, name, view);
}

template void CheckDense(std::string_view, std::string_view, const TensorView&, DType,
                         const Shape&);
template void CheckDense(std::string_view, std::string_view, const ConstTensorView&, DType,
                         const Shape&);

template <class Byte>
bool IsContiguous(const BasicTensorView<Byte>& view) {
  if (view.strides.empty()) return true;
  if (view.strides.size() != view.shape.size()) return false;
  if (std::ranges::count(view.shape, 0) > 0) return true;
  auto step = static_cast<std::ptrdiff_t>(ItemSize(view.dtype));
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] > 1 && view.strides[i] != step) return false;
    step *= view.shape[i];
  }
  return true;
}

template <class Byte>
std::optional<std::ptrdiff_t> RowStride(const BasicTensorView<Byte>& view) {
  const MatrixShape matrix = FlattenShape(view.shape);
  if (matrix.Size() == 0) return 0;
  const auto row = static_cast<std::ptrdiff_t>(matrix.cols * ItemSize(view.dtype));
  if (view.strides.empty() || view.shape.size() < 2) return row;
  std::ptrdiff_t row_stride = row, expected = 0;
  bool first = true;
  for (std::size_t i = view.shape.size() - 1; i-- > 0;) {
    if (view.shape[i] == 1) continue;
    if (first) {
      row_stride = view.strides[i];
    } else if (view.strides[i] != expected) {
      return std::nullopt;
    }
    first = false;
    expected = view.strides[i] * view.shape[i];
  }
  return row_stride;
}

template std::optional<std::ptrdiff_t> RowStride(const TensorView&);
template std::optional<std::ptrdiff_t> RowStride(const ConstTensorView&);

template bool IsContiguous(const TensorView&);
template bool IsContiguous(const ConstTensorView&);

}  // namespace narrowfloat
