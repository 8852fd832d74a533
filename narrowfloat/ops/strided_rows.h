// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "narrowfloat/kernels/kernel_table.h"
#include "narrowfloat/tensor/view.h"

namespace narrowfloat {

/// The rows of a view of any rank, in the form that kernels take. Holds a table of row offsets only
/// if the distance between rows is not constant.
template <class Byte>
struct StridedRows {
  MatrixRows<Byte> matrix;
  MatrixShape shape{};
  std::vector<std::ptrdiff_t> offsets;

  StridedRows() = default;
  StridedRows(const StridedRows&) = delete;  // `matrix` points into `offsets`
  StridedRows& operator=(const StridedRows&) = delete;
};

/// Errors: InvalidArgument if the view is not a float tensor on the CPU with adjacent items in its
/// last dimension, or has elements and no data; `verb` and `name` begin the message.
template <class Byte>
void FillRows(const char* verb, const char* name, const BasicTensorView<Byte>& view,
              StridedRows<Byte>& rows);

/// Address range of a view's elements: [begin, end), empty if it has none.
struct Extent {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool Overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};
template <class Byte>
Extent ExtentOf(const BasicTensorView<Byte>& view);

/// Throws InvalidArgument "VERB: A must not overlap B".
[[noreturn]] void RefuseOverlap(std::string_view verb, std::string_view a, std::string_view b);

/// Checks that two extents, named `a_name` and `b_name` in the message, are disjoint.
void CheckDisjoint(std::string_view verb, std::string_view a_name, const Extent& a,
                   std::string_view b_name, const Extent& b);

/// Returns true if items are adjacent in C order.
template <class Byte>
bool IsContiguous(const BasicTensorView<Byte>& view);

}  // namespace narrowfloat
