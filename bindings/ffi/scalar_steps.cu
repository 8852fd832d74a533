// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>

#include "bindings/ffi/scalar_steps.h"
#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/numerics/delayed_scale.h"

namespace narrowfloat::xla_ffi {
namespace {

constexpr unsigned kThreads = 256;

__global__ void Raise(RaiseAmaxStep step) {
  if (*step.measured > *step.amax) *step.amax = *step.measured;
}

__global__ void ScaleItems(ScaleFromAmaxStep step) {
  for (std::size_t i = blockIdx.x * kThreads + threadIdx.x; i < step.count;
       i += gridDim.x * kThreads) {
    step.scales[i] = DelayedScale(step.amaxes[i], step.scaled_max, step.old_scales[i]);
  }
}

/// Runs the step in one block. The order of the amaxes does not change the scale: LargerAmax
/// ignores NaN, and neither +0 nor -0 gives a new scale.
__global__ void RollHistory(DelayedScaleStep step) {
  __shared__ float largest[kThreads];
  const float newest = *step.newest;
  float amax = newest;
  for (std::size_t i = 1 + threadIdx.x; i < step.length; i += kThreads) {
    if (step.uses_all) amax = LargerAmax(amax, step.before[i]);
    step.after[i - 1] = i == 1 ? 0.0f : step.before[i];
  }
  largest[threadIdx.x] = amax;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      largest[threadIdx.x] = LargerAmax(largest[threadIdx.x], largest[threadIdx.x + half]);
    }
  }
  if (threadIdx.x != 0) return;
  step.after[step.length - 1] = step.length == 1 ? 0.0f : newest;
  *step.scale = DelayedScale(largest[0], step.scaled_max, *step.old_scale);
}

}  // namespace

void ZeroOnCuda(void* to, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  cuda::Check(cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(stream)), "filling memory");
}

void RunOnCuda(const RaiseAmaxStep& step, void* stream) {
  cuda::Launch(&Raise, dim3(1), dim3(1), 0, stream, step);
}

void RunOnCuda(const ScaleFromAmaxStep& step, void* stream) {
  // Launches a block even for no items: XLA rejects the recording of a call without a launch.
  const std::size_t blocks = std::clamp<std::size_t>((step.count + kThreads - 1) / kThreads, 1, 64);
  cuda::Launch(&ScaleItems, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, stream, step);
}

void RunOnCuda(const DelayedScaleStep& step, void* stream) {
  cuda::Launch(&RollHistory, dim3(1), dim3(kThreads), 0, stream, step);
}

}  // namespace narrowfloat::xla_ffi
