// SPDX-License-Identifier: Apache-2.0
// Scales of blocks. Items of an NVFP4 block are multiplied by a quotient, the block's factor, which
// depends on the code of the block's scale and on numbers of the tensor. StoreNumbersKernel
// computes the factors of all codes once per call; the kernels that quantize read them.
#pragma once

#include <array>

#include "narrowfloat/kernels/cuda/items.cuh"
#include "narrowfloat/kernels/cuda/kernels.h"
#include "narrowfloat/numerics/fast_codec.h"
#include "narrowfloat/schemes/scheme.h"

namespace narrowfloat::cuda {
namespace {

/// The numbers at the address DirectionMemory::state.
template <Scheme S>
struct StoredState {
  alignas(kMostTensorStateBytes) typename S::TensorState tensor;
  alignas(kMostTensorStateBytes) float factors[TwoLevelScheme<S> ? kScaleCodes : 1];
};

/// Returns the factors of the codes of a direction's scales; null if they were not computed.
template <Scheme S>
__device__ __forceinline__ const float* FactorsOf(const DirectionMemory<std::byte>& out) {
  if (out.state == nullptr) return nullptr;
  return reinterpret_cast<const StoredState<S>*>(out.state)->factors;
}

/// Returns a block's scale from its scale_inv before rounding.
template <TwoLevelScheme S>
__device__ __forceinline__ BlockScale ReadScale(float wanted, const float* factors) {
  const std::uint32_t code = EncodeFast<typename S::Scale>(wanted);
  return {code, factors[code]};
}

/// Returns S::ScaleBlock(amax, state). `factors` are the factors of `state`, or, if
/// kMayLackFactors, null.
template <Scheme S, bool kMayLackFactors = false>
__device__ __forceinline__ BlockScale ScaleOf(float amax, const typename S::TensorState& state,
                                              const float* factors) {
  if constexpr (TwoLevelScheme<S>) {
    if (!kMayLackFactors || factors != nullptr)
      return ReadScale<S>(S::WantedScale(amax, state), factors);
  }
  return S::ScaleBlock(amax, state);
}

/// Returns S::Candidates(amax, state), with `factors` as in ScaleOf.
template <Scheme S>
__device__ __forceinline__ std::array<BlockScale, 2> CandidatesOf(
    float amax, const typename S::TensorState& state, const float* factors) {
  if (factors == nullptr) return S::Candidates(amax, state);
  const std::array<float, 2> wanted = S::WantedCandidates(amax, state);
  return {ReadScale<S>(wanted[0], factors), ReadScale<S>(wanted[1], factors)};
}

}  // namespace
}  // namespace narrowfloat::cuda
