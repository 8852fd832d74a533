// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// The rows of a view of any rank, in the form that kernels take. Holds a table of row offsets only
/// if the distance between rows is not constant.
template <class Byte>
struct Rows {
  MatrixRows<Byte> matrix;
  MatrixShape shape{};
  std::vector<std::ptrdiff_t> offsets;

  Rows() = default;
  Rows(const Rows&) = delete;  // `matrix` points into `offsets`
  Rows& operator=(const Rows&) = delete;
};

/// Errors: InvalidArgument if the view is not a float tensor on the CPU with adjacent items in its
/// last dimension, or has elements and no data; `verb` and `name` begin the message.
template <class Byte>
void FillRows(const char* verb, const char* name, const BasicTensorView<Byte>& view,
              Rows<Byte>& rows);

/// Address range of a view's elements: [begin, end), empty if it has none.
struct Extent {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool Overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};
template <class Byte>
Extent ExtentOf(const BasicTensorView<Byte>& view);

/// Returns true if items are adjacent in C order.
template <class Byte>
bool IsContiguous(const BasicTensorView<Byte>& view);

}  // namespace narrowfloat
