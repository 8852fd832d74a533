// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Checks a tensor of rows; `verb` and `name` begin the messages.
/// Errors: InvalidArgument if the view is not a float tensor with one stride per dimension and
/// adjacent items in the last one, has elements and no data, or extends past the end of memory; for
/// a writable view also if a stride is less than the bytes that a row and the shorter strides span.
template <class Byte>
void CheckRows(std::string_view verb, std::string_view name, const BasicTensorView<Byte>& view);

/// Checks a tensor without strides. Errors: InvalidArgument if the view is not contiguous, of that
/// type and shape, or has elements and no data.
template <class Byte>
void CheckDense(std::string_view verb, std::string_view name, const BasicTensorView<Byte>& view,
                DType dtype, const Shape& shape);

/// Returns true if items are adjacent in C order.
template <class Byte>
bool IsContiguous(const BasicTensorView<Byte>& view);

/// Returns the distance in bytes between the rows of the flattened tensor, if it is constant; the
/// bytes of a row if there is one row, with any stride; 0 if there are no items.
/// Requires: CheckRows accepts the view.
template <class Byte>
std::optional<std::ptrdiff_t> RowStride(const BasicTensorView<Byte>& view);

}  // namespace narrowfloat
