// SPDX-License-Identifier: Apache-2.0
// XLA's platforms. A quantizing handler has one body for all of them, with a Platform argument.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/ffi/scalar_steps.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/view.h"
#include "xla/ffi/api/ffi.h"

namespace narrowfloat::xla_ffi {

namespace ffi = ::xla::ffi;

/// The context that XLA passes to a handler: a thread pool on the CPU, a stream on CUDA.
struct Platform {
  std::optional<ffi::ThreadPool> threads;  // absent: CUDA
  void* stream = nullptr;
};

/// Names of the platforms in a binding. Both decode to a Platform.
struct OnCpu {};
struct OnCuda {};

/// The execution of a call's verbs, and the device of its buffers.
struct CallExecution : Execution {
  Device device = Device::kCpu;

  bool IsOnCpu() const { return device == Device::kCpu; }
};

/// Copies bytes in the device's memory, in the order of the device's work; `to` may be `from`.
void CopyBytes(const CallExecution& execution, void* to, const void* from, std::size_t bytes);
void ZeroBytes(const CallExecution& execution, void* to, std::size_t bytes);

/// Copies bytes from the device's memory, or to it. CopyToHost waits for the device's work.
void CopyToHost(const CallExecution& execution, void* to, const void* from, std::size_t bytes);
void CopyFromHost(const CallExecution& execution, void* to, const void* from, std::size_t bytes);

/// Runs a step on the device that holds its floats.
void Run(const CallExecution& execution, const RaiseAmaxStep& step);
void Run(const CallExecution& execution, const ScaleFromAmaxStep& step);
void Run(const CallExecution& execution, const DelayedScaleStep& step);

/// Floats in the device's memory, initially zero, for the duration of a call.
class ScratchFloats {
 public:
  ScratchFloats(const CallExecution& execution, std::size_t count);
  float* data() const { return data_; }

 private:
  std::vector<float> on_cpu_;
  std::shared_ptr<void> on_cuda_;
  float* data_;
};

}  // namespace narrowfloat::xla_ffi

namespace xla::ffi {

template <>
struct CtxDecoding<narrowfloat::xla_ffi::OnCpu> {
  using Type = narrowfloat::xla_ffi::Platform;
  template <class... Args>
  static std::optional<Type> Decode(Args&&... args) {
    return Type{.threads = CtxDecoding<ThreadPool>::Decode(std::forward<Args>(args)...)};
  }
};

template <>
struct CtxDecoding<narrowfloat::xla_ffi::OnCuda> {
  using Type = narrowfloat::xla_ffi::Platform;
  template <class... Args>
  static std::optional<Type> Decode(Args&&... args) {
    const auto stream = CtxDecoding<PlatformStream<void*>>::Decode(std::forward<Args>(args)...);
    if (!stream) return std::nullopt;
    return Type{.threads = std::nullopt, .stream = *stream};
  }
};

}  // namespace xla::ffi
