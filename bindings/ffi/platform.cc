// SPDX-License-Identifier: Apache-2.0
#include "bindings/ffi/platform.h"

#include <cstring>

#include "narrowfloat/kernels/cuda/memory.h"
#include "narrowfloat/numerics/delayed_scale.h"

namespace narrowfloat::xla_ffi {
namespace {

#ifdef NF_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda =
    false;  // functions called only under `if constexpr (kHasCuda)` are then not linked
#endif

void RunHere(const RaiseAmaxStep& step) {
  if (*step.measured > *step.amax) *step.amax = *step.measured;
}

void RunHere(const ScaleFromAmaxStep& step) {
  for (std::size_t i = 0; i < step.count; ++i)
    step.scales[i] = DelayedScale(step.amaxes[i], step.scaled_max, step.old_scales[i]);
}

void RunHere(const DelayedScaleStep& step) {
  float amax = *step.newest;
  for (std::size_t i = 1; i < step.length; ++i) {
    if (step.uses_all) amax = LargerAmax(amax, step.before[i]);
    step.after[i - 1] = step.before[i];
  }
  step.after[step.length - 1] = *step.newest;
  step.after[0] = 0.0f;  // the same item, if length is 1
  *step.scale = DelayedScale(amax, step.scaled_max, *step.old_scale);
}

template <class Step>
void RunStep(const CallExecution& execution, const Step& step) {
  if constexpr (kHasCuda) {
    if (!execution.IsOnCpu()) return RunOnCuda(step, execution.stream);
  }
  RunHere(step);
}

}  // namespace

void CopyBytes(const CallExecution& execution, void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
  if constexpr (kHasCuda) {
    if (!execution.IsOnCpu()) return cuda::Copy(to, from, bytes, execution.stream);
  }
  std::memmove(to, from, bytes);
}

void ZeroBytes(const CallExecution& execution, void* to, std::size_t bytes) {
  if constexpr (kHasCuda) {
    if (!execution.IsOnCpu()) return ZeroOnCuda(to, bytes, execution.stream);
  }
  std::memset(to, 0, bytes);
}

void CopyToHost(const CallExecution& execution, void* to, const void* from, std::size_t bytes) {
  CopyBytes(execution, to, from, bytes);
  if constexpr (kHasCuda) {
    if (!execution.IsOnCpu()) cuda::Synchronize(execution.stream);
  }
}

void CopyFromHost(const CallExecution& execution, void* to, const void* from, std::size_t bytes) {
  // Before it returns, CUDA copies memory that is not pinned to its own memory.
  CopyBytes(execution, to, from, bytes);
}

void Run(const CallExecution& execution, const RaiseAmaxStep& step) {
  RunStep(execution, step);
}
void Run(const CallExecution& execution, const ScaleFromAmaxStep& step) {
  RunStep(execution, step);
}
void Run(const CallExecution& execution, const DelayedScaleStep& step) {
  RunStep(execution, step);
}

ScratchFloats::ScratchFloats(const CallExecution& execution, std::size_t count) {
  if constexpr (kHasCuda) {
    if (!execution.IsOnCpu()) {
      const std::size_t bytes = count * sizeof(float);
      const auto memory = std::make_shared<cuda::Memory>(bytes, execution.stream);
      data_ = reinterpret_cast<float*>(memory->data());
      on_cuda_ = memory;
      ZeroBytes(execution, data_, bytes);
      return;
    }
  }
  on_cpu_.resize(count);
  data_ = on_cpu_.data();
}

}  // namespace narrowfloat::xla_ffi
