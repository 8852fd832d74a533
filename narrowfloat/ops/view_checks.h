// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// Checks a tensor of rows; `verb` and `name` begin the messages.
/// Errors: InvalidArgument if the view is not a float tensor with adjacent items in its last
/// dimension, has elements and no data, reaches further than memory, or, of a tensor that is
/// written, if a stride is shorter than what lies at the shorter strides, one row or many.
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

/// Returns the distance in bytes between the rows of the flattened tensor, if it is constant; a
/// row's own bytes if there is one row, whose stride may be any number; 0 if there are no items.
/// Requires: CheckRows accepts the view.
template <class Byte>
std::optional<std::ptrdiff_t> RowStride(const BasicTensorView<Byte>& view);

}  // namespace narrowfloat
