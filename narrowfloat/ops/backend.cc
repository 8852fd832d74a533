// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/ops/backend.h"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <utility>

#include "narrowfloat/ops/cpu/cpu_backend.h"
#include "narrowfloat/ops/cuda/cuda_backend.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

constexpr std::array<std::string_view, 2> kDeviceNames = {"cpu", "cuda"};

constexpr CpuBackend kCpuBackend;

#if defined(NF_CUDA)
constexpr CudaBackend kCudaBackend;
constexpr const Backend* kCuda = &kCudaBackend;
#else
constexpr const Backend* kCuda = nullptr;
#endif

constinit std::array<std::atomic<const Backend*>, kDeviceNames.size()> g_backends{&kCpuBackend,
                                                                                  kCuda};

std::size_t IndexOf(Device device) {
  return static_cast<std::size_t>(device);
}

}  // namespace

std::string DeviceName(Device device) {
  if (IndexOf(device) < kDeviceNames.size()) return std::string(kDeviceNames[IndexOf(device)]);
  return fmt::format("device {}", IndexOf(device));
}

const Backend* FindBackendOf(Device device) {
  return IndexOf(device) < g_backends.size() ? g_backends[IndexOf(device)].load() : nullptr;
}

void RegisterBackend(Device device, const Backend* backend) {
  if (device == Device::kCpu || IndexOf(device) >= g_backends.size()) {
    throw InvalidArgument(
        fmt::format("register_backend: the device must be a known one other than cpu, got {}",
                    DeviceName(device)));
  }
  g_backends[IndexOf(device)] = backend;
}

}  // namespace narrowfloat
