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
struct StridedRows {
  /// Requires: CheckRows accepts the view.
  explicit StridedRows(const BasicTensorView<Byte>& view);
  StridedRows(const StridedRows&) = delete;  // `matrix` points into `offsets`
  StridedRows& operator=(const StridedRows&) = delete;

  MatrixRows<Byte> matrix;
  MatrixShape shape;
  std::vector<std::ptrdiff_t> offsets;
};

}  // namespace narrowfloat
