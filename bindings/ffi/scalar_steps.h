// SPDX-License-Identifier: Apache-2.0
// Steps on a few floats of a call, as structs that host and device read.
#pragma once

#include <cstddef>

namespace narrowfloat::xla_ffi {

/// Writes the larger of both amaxes to `amax`; ignores a NaN in `measured`.
struct RaiseAmaxStep {
  float* amax;
  const float* measured;
};

/// Computes scales from amaxes, item by item, by DelayedScale().
struct ScaleFromAmaxStep {
  const float *amaxes, *old_scales;
  float* scales;
  std::size_t count;
  float scaled_max;
};

/// Computes one step of delayed scaling as JAX's quantizers do: an amax of 0 is not special. The
/// newest amax becomes the last item of the history; item 0 becomes 0.
struct DelayedScaleStep {
  const float *before, *newest, *old_scale;
  float *after, *scale;
  std::size_t length;  // of the history; 1 or more
  float scaled_max;
  bool uses_all;  // the scale follows the largest amax of the history instead of the newest
};

/// Launches a kernel on `stream` that runs the step on floats in the memory of a CUDA device.
/// Errors: DeviceError.
void RunOnCuda(const RaiseAmaxStep& step, void* stream);
void RunOnCuda(const ScaleFromAmaxStep& step, void* stream);
void RunOnCuda(const DelayedScaleStep& step, void* stream);
/// Fills memory of a CUDA device with zeros, in the order of `stream`.
void ZeroOnCuda(void* to, std::size_t bytes, void* stream);

}  // namespace narrowfloat::xla_ffi
