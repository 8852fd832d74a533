// SPDX-License-Identifier: Apache-2.0
// The last step of a product: from sums to the result.
#pragma once

#include <cstddef>

#include "narrowfloat/kernels/gemm_kernels.h"
#include "narrowfloat/tensor/sum_function.h"

namespace narrowfloat {

/// The function and its second matrix, of the result's type. kGelu stores its argument there unless
/// the matrix has no data; kTimesGeluGradient reads it.
struct SumStep {
  SumFunction function = SumFunction::kNone;
  MatrixRows<std::byte> points{};
};

/// Arguments of writing a micro-tile's sums to the result.
struct FinishArgs {
  const void* sums;
  std::size_t sums_stride;  // items from one row of sums to the next
  SumType type;
  const double *a_scales, *b_scales;  // read for kUnscaledDot
  GemmRule rule;
  const float* bias;  // of the tile's first column, or null
  SumStep step;
  bool accumulates;
  MatrixRows<std::byte> out;
  Tile tile;  // position in the result
};

}  // namespace narrowfloat
