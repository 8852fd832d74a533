// SPDX-License-Identifier: Apache-2.0
// Runs a handler on XLA's threads or stream, and converts errors to XLA's.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "bindings/ffi/platform.h"
#include "narrowfloat/ops/execution.h"
#include "narrowfloat/tensor/error.h"
#include "narrowfloat/tensor/float_environment.h"
#include "xla/ffi/api/ffi.h"

namespace narrowfloat::xla_ffi {

namespace ffi = ::xla::ffi;

/// Adapts XLA's pool to the core's interface. The calling thread works too and the pool's threads
/// only help, so that a busy pool delays a call but never blocks it. The first exception of a task
/// is rethrown to the caller after all tasks. The core sets the floating-point environment.
class XlaThreadPool final : public ThreadPool {
 public:
  explicit XlaThreadPool(ffi::ThreadPool& pool) : pool_(pool) {}

  std::size_t ThreadCount() const override;
  void ParallelFor(std::size_t count, const std::function<void(std::size_t)>& task) override;

 private:
  ffi::ThreadPool& pool_;
};

/// Runs `body` and turns every exception into an XLA error.
template <class Body>
ffi::Error Guard(Body&& body) noexcept {
  const auto error = [](ffi::ErrorCode code, const char* message) {
    return ffi::Error(code, std::string(message));
  };
  try {
    std::forward<Body>(body)();
    return ffi::Error::Success();
  } catch (const InvalidArgument& refused) {
    return error(ffi::ErrorCode::kInvalidArgument, refused.what());
  } catch (const Unsupported& missing) {
    return error(ffi::ErrorCode::kUnimplemented, missing.what());
  } catch (const std::exception& failed) {
    return error(ffi::ErrorCode::kInternal, failed.what());
  } catch (...) {
    return error(ffi::ErrorCode::kInternal, "narrowfloat: an exception of unknown type");
  }
}

/// Runs body(execution) on the threads of the handler's context, with subnormals kept: XLA's
/// setting flushes them, also in comparisons.
template <class Body>
ffi::Error RunOn(ffi::ThreadPool& threads, Body&& body) noexcept {
  return Guard([&] {
    const FloatEnvironment environment;
    XlaThreadPool pool(threads);
    std::forward<Body>(body)(CallExecution{{.pool = &pool}, Device::kCpu});
  });
}

/// Runs body(execution) on the platform's threads, or on its stream. On a stream the call returns
/// before its work is done; XLA reports later errors of the device.
template <class Body>
ffi::Error RunOn(Platform& platform, Body&& body) noexcept {
  if (platform.threads) return RunOn(*platform.threads, std::forward<Body>(body));
  return Guard([&] {
    const FloatEnvironment environment;
    std::forward<Body>(body)(CallExecution{{.stream = platform.stream}, Device::kCuda});
  });
}

}  // namespace narrowfloat::xla_ffi
