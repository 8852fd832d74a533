// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/cuda/memory.h"

#include <cuda_runtime.h>

#include <string>

#include "narrowfloat/kernels/cuda/launch.cuh"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat::cuda {
namespace {

/// Returns true if the current device allocates in the order of a stream.
bool HasMemoryPools() {
  int device = 0, supported = 0;
  Check(cudaGetDevice(&device), "finding the current device");
  Check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device),
        "reading a property of the device");
  return supported != 0;
}

}  // namespace

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next call would report it again
  throw DeviceError("cuda: " + std::string(what) + " failed: " + cudaGetErrorString(error) + " (" +
                    cudaGetErrorName(error) + ")");
}

int DeviceCount() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

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
  void* data = nullptr;
  const cudaError_t error = HasMemoryPools()
                                ? cudaMallocAsync(&data, bytes, static_cast<cudaStream_t>(stream))
                                : cudaMalloc(&data, bytes);
  Check(error, "allocating memory");
  data_ = static_cast<std::byte*>(data);
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  int device = 0, supported = 0;
  if (cudaGetDevice(&device) == cudaSuccess)
    static_cast<void>(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device));
  // cudaFree waits for the device's work, so that a kernel's memory is not freed under it.
  if (supported != 0) {
    static_cast<void>(cudaFreeAsync(data_, static_cast<cudaStream_t>(stream_)));
  } else {
    static_cast<void>(cudaFree(data_));
  }
}

}  // namespace narrowfloat::cuda
