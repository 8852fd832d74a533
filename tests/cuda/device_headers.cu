// SPDX-License-Identifier: Apache-2.0
// Uses in device code everything that numerics and schemes offer to it.
#include <cstddef>
#include <cstdint>

#include "narrowfloat/numerics/delayed_scale.h"
#include "narrowfloat/numerics/e8m0.h"
#include "narrowfloat/schemes/registry.h"

namespace narrowfloat {
namespace {

template <FloatFormat F>
__device__ void RoundTrip(const float* in, float* out, std::size_t i) {
  out[i] += Decode<F>(Encode<F>(in[i]));
}

template <class... F>
__device__ void RoundTripAll(TypeList<F...>, const float* in, float* out, std::size_t i) {
  (RoundTrip<F>(in, out, i), ...);
}

template <class... F>
__device__ void RoundTripWide(TypeList<F...>, const float* in, float* out, std::size_t i) {
  ((out[i] += Decode<F>(Encode<F, Overflow::kInfinity>(in[i]))), ...);
}

template <Scheme S>
__device__ void ScaleAndBack(const float* in, float* out, std::size_t i) {
  const auto state = S::Prepare(in[i], ScaleOptions{});
  const BlockScale scale = S::ScaleBlock(in[i], state);
  out[i] += in[i] * scale.scale * S::DecodeScale(scale.scale_inv, state);
}

template <class... S>
__device__ void ScaleAll(TypeList<S...>, const float* in, float* out, std::size_t i) {
  (ScaleAndBack<S>(in, out, i), ...);
}

__global__ void UseEverything(const float* in, float* out) {
  const std::size_t i = threadIdx.x;
  RoundTripAll(ElementFormats{}, in, out, i);
  RoundTripWide(WideFormats{}, in, out, i);
  ScaleAll(AllSchemes{}, in, out, i);
  const std::uint32_t code = EncodeE8M0Up(in[i]);
  out[i] += DecodeE8M0(code) * DecodeE8M0Reciprocal(code);
  out[i] += ScaleFromAmax(in[i], kMaxValue<E4M3>, {.force_pow_2_scales = true});
  out[i] += DelayedScale(LargerAmax(in[i], out[i]), kMaxValue<E4M3>, in[i]);
  out[i] = CanonicalNan(out[i]);
}

}  // namespace

void LaunchEverything(const float* in, float* out) {
  UseEverything<<<1, 32>>>(in, out);
}

}  // namespace narrowfloat
