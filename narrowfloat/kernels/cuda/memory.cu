// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cuda/memory.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::cuda {
namespace {

/// Bytes that a device's pool keeps for later calls. CUDA's own pool returns freed memory to the
/// driver when a stream is synchronized, and a new allocation is slow.
constexpr std::uint64_t kKeptBytes = std::uint64_t{64} << 20;

/// Returns a new pool of a device; null if the device does not support stream-ordered allocation.
cudaMemPool_t MakePool(int device) {
  int supported = 0;
  Check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device),
        "reading a property of the device");
  if (supported == 0) return nullptr;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  Check(cudaMemPoolCreate(&pool, &properties), "making a memory pool");
  std::uint64_t kept = kKeptBytes;
  Check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept),
        "setting up a memory pool");
  return pool;
}

/// Returns the pool of the current device, which lives as long as the process, or null.
cudaMemPool_t PoolOfDevice() {
  static std::mutex mutex;
  static std::map<int, cudaMemPool_t> pools;
  int device = 0;
  Check(cudaGetDevice(&device), "finding the current device");
  const std::scoped_lock lock(mutex);
  const auto found = pools.find(device);
  return found != pools.end() ? found->second : pools[device] = MakePool(device);
}

}  // namespace

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // otherwise the next call would report it again
  throw DeviceError("cuda: " + std::string(what) + " failed: " + cudaGetErrorString(error) + " (" +
                    cudaGetErrorName(error) + ")");
}

#if !defined(NF_CUDA_EMULATION)
bool CanStartEarly() {
  int device = 0, major = 0;
  Check(cudaGetDevice(&device), "finding the current device");
  Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "reading a property of the device");
  return major >= 9;
}
#endif

void RequireDevice() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  Check(error, "finding a device");
}

void Copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
        "copying memory");
}

void Synchronize(Stream stream) {
  Check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for a stream");
}

Memory::Memory(std::size_t bytes, Stream stream) : stream_(stream) {
  if (bytes == 0) return;
  const cudaMemPool_t pool = PoolOfDevice();
  is_of_pool_ = pool != nullptr;
  void* data = nullptr;
  const auto of = static_cast<cudaStream_t>(stream);
  Check(is_of_pool_ ? cudaMallocFromPoolAsync(&data, bytes, pool, of) : cudaMalloc(&data, bytes),
        "allocating memory");
  data_ = static_cast<std::byte*>(data);
}

Memory::~Memory() {
  // cudaFree waits for the device's work, so that memory is not freed while a kernel uses it.
  if (is_of_pool_) {
    static_cast<void>(cudaFreeAsync(data_, static_cast<cudaStream_t>(stream_)));
  } else if (data_ != nullptr) {
    static_cast<void>(cudaFree(data_));
  }
}

}  // namespace narrowfloat::cuda
