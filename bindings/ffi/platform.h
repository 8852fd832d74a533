// SPDX-License-Identifier: Apache-2.0
// XLA's platforms. A handler that quantizes has one body for all of them, which gets a Platform.
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

/// How the verbs run in a call, and the device of its buffers.
struct CallExecution : Execution {
  Device device = Device::kCpu;

  bool IsOnCpu() const { return device == Device::kCpu; }
};

/// Copies bytes in the memory of the device, in the order of its work; `to` may be `from`.
void CopyBytes(const CallExecution& execution, void* to, const void* from, std::size_t bytes);
void ZeroBytes(const CallExecution& execution, void* to, std::size_t bytes);

/// Copies bytes from the memory of the device, or to it. The first waits for the device's work.
void CopyToHost(const CallExecution& execution, void* to, const void* from, std::size_t bytes);
void CopyFromHost(const CallExecution& execution, void* to, const void* from, std::size_t bytes);

/// Runs a step on the device that holds its floats.
void Run(const CallExecution& execution, const RaiseAmaxStep& step);
void Run(const CallExecution& execution, const ScaleFromAmaxStep& step);
void Run(const CallExecution& execution, const DelayedScaleStep& step);

/// Floats in the memory of the device, zero at first, for the time of a call.
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
