// SPDX-License-Identifier: Apache-2.0
// What happens to the sums of a product on their way to the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "narrowfloat/kernels/gemm_kernels.h"

namespace narrowfloat {

/// A function of the sum and its bias, before what accumulates is added.
enum class SumFunction : std::uint8_t {
  kNone,
  kGelu,              // Gelu; what it is applied to is rounded and stored, if that is asked for
  kTimesGeluGradient  // TimesGeluGradient at given points
};

/// The function, and its second matrix, of the result's type: what kGelu stores (no data: nothing)
/// and kTimesGeluGradient reads.
struct SumStep {
  SumFunction function = SumFunction::kNone;
  MatrixRows<std::byte> points{};
};

/// A request to write a micro-tile's sums to the result.
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
  Tile tile;  // of the result
};

}  // namespace narrowfloat
