// SPDX-License-Identifier: Apache-2.0
// 4over6: the choice between two scales of a block by the errors of its codes.
#pragma once

#include <array>

#include "narrowfloat/kernels/cuda/e2m1.cuh"
#include "narrowfloat/kernels/cuda/tile.cuh"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat::cuda {
namespace {

constexpr int kErrorItems = 16;  // items of a line with errors that are added in order

template <Scheme S>
__device__ __forceinline__ bool UsesFourOverSix(const typename S::TensorState& state) {
  if constexpr (FourOverSixScheme<S>) {
    return S::UsesFourOverSix(state);
  } else {
    return false;
  }
}

/// Adds the terms of the first `count` of 8 items to `sum`, as S::Error computes them. Out of line:
/// inlined for every item, it makes kernels several times as long.
template <Scheme S>
__device__ NF_NOINLINE float AddErrors(typename S::TensorState state, EightFloats items, int count,
                                       BlockScale scale, float sum) {
  const auto add = [&](int i, float item) {
    if (i >= count) return;
    const std::uint32_t code = Encode<typename S::Element>(item * scale.scale);
    sum += S::Error(code, scale.scale_inv, item, state);
  };
  add(0, items.low.x);
  add(1, items.low.y);
  add(2, items.low.z);
  add(3, items.low.w);
  add(4, items.high.x);
  add(5, items.high.y);
  add(6, items.high.z);
  add(7, items.high.w);
  return sum;
}

/// Returns true if QuotientBy() may divide the products of a tensor's amax and decoded values. The
/// decoded values, under a block's scale, are 0 or from 2^-10 to 2688; products 0 or 2^-90 to 2^92.
__device__ __forceinline__ bool QuotientsAreExact(float amax) {
  const float magnitude = fabsf(amax);
  return magnitude > 0x1p-80f && magnitude < 0x1p80f;
}

/// Returns the sum of the terms of 16 items. An item and its opposite have the same term. Requires:
/// items outside of the tensor are 0; scale.scale >= 0.
template <Scheme S, bool kFast, bool kSquared, class Item>
__device__ __forceinline__ float SumOfErrors(const typename S::TensorState& state, const Item& item,
                                             const BlockScale& scale) {
  const float decoded = DecodeFast<typename S::Scale>(scale.scale_inv);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kErrorItems; ++i) {
    const float magnitude = fabsf(item(i));
    const float kept = fminf(magnitude * scale.scale, kMaxValue<typename S::Element>);
    const float scaled = RoundToE2M1(kept) * decoded;  // exact
    const float difference =
        kFast ? scaled - magnitude * state.encode
              : QuotientBy(scaled * state.amax, state.full_range, state.decode) - magnitude;
    sum += kSquared ? difference * difference : fabsf(difference);
  }
  return sum;
}

/// Returns a candidate's error for 16 items of a line; `count` of these are in the tensor.
template <Scheme S, class Item>
__device__ __forceinline__ float ErrorOf(const typename S::TensorState& state, const Item& item,
                                         int count, const BlockScale& scale) {
  const bool squared = state.four_over_six == FourOverSix::kMeanSquaredError;
  // See IsSpecialBlock in quantize_rows.cuh.
  const bool is_plain = scale.scale >= 0.0f && fabsf(state.encode) <= kLargestFloat;
  if (is_plain && state.fast_error)
    return squared ? SumOfErrors<S, true, true>(state, item, scale)
                   : SumOfErrors<S, true, false>(state, item, scale);
  if (is_plain && !state.fast_error && QuotientsAreExact(state.amax))
    return squared ? SumOfErrors<S, false, true>(state, item, scale)
                   : SumOfErrors<S, false, false>(state, item, scale);
  const auto later = [&](int i) { return item(i + 8); };
  const float sum = AddErrors<S>(state, EightFloats::Of(item), count, scale, 0.0f);
  return AddErrors<S>(state, EightFloats::Of(later), count - 8, scale, sum);
}

/// Computes the errors of 16 items of a line for both candidates.
template <Scheme S, class Item>
__device__ __forceinline__ void FindErrors(const typename S::TensorState& state, const Item& item,
                                           int count, const std::array<BlockScale, 2>& candidates,
                                           float (&errors)[2]) {
#pragma unroll 1
  for (int c = 0; c < 2; ++c) {
    const float error = ErrorOf<S>(state, item, count, c == 0 ? candidates[0] : candidates[1]);
    (c == 0 ? errors[0] : errors[1]) = error;
  }
}

/// Returns the candidate with the smaller error; the second one if they are equal or NaN.
__device__ __forceinline__ BlockScale Choose(const std::array<BlockScale, 2>& candidates,
                                             const float (&errors)[2]) {
  return errors[0] < errors[1] ? candidates[0] : candidates[1];
}

/// Shared memory for the errors of the rows of a tile's square blocks, for both candidates.
struct SharedErrors {
  float of_row[2][kTile][kTile / kErrorItems];

  /// Adds the errors of a block's rows pairwise: each row of the first half to one of the second.
  __device__ __forceinline__ void OfBlock(int row, int block, float (&errors)[2]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float sums[kErrorItems];
#pragma unroll
      for (int i = 0; i < kErrorItems; ++i)
        sums[i] = of_row[c][row / kErrorItems * kErrorItems + i][block];
#pragma unroll
      for (int half = kErrorItems / 2; half > 0; half /= 2) {
#pragma unroll
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
      }
      errors[c] = sums[0];
    }
  }
};

}  // namespace
}  // namespace narrowfloat::cuda
