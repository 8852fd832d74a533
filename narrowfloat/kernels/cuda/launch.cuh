// SPDX-License-Identifier: Apache-2.0
// Launches kernels, on devices and in the emulation of tests/cuda/emulation.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "narrowfloat/kernels/cuda/memory.h"
#include "narrowfloat/tensor/dtype.h"

namespace narrowfloat::cuda {

/// Throws "cuda: WHAT failed: REASON (NAME)" unless `error` is success. Errors: DeviceError.
void Check(cudaError_t error, const char* what);

/// Returns true if the current device supports Start::kEarly.
bool CanStartEarly();

/// Returns the block's shared memory, aligned to 16 bytes. Its size is the argument of
/// Launch().
#if defined(NF_CUDA_EMULATION)
inline std::byte* DynamicShared() {
  return emulation::SharedMemory();
}
#else
__device__ inline std::byte* DynamicShared() {
  extern __shared__ uint4 nf_shared[];
  return reinterpret_cast<std::byte*>(nf_shared);
}
#endif

/// Waits until the kernels before this one on its stream have ended, and then allows the device to
/// set up the next kernel's blocks. A kernel launched with Start::kEarly calls it before it
/// accesses memory. Since it waits first, the end of one kernel implies the end of all before it.
__device__ __forceinline__ void AwaitPrevious() {
#if defined(NF_CUDA_EMULATION)
  emulation::CountAwait();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Time at which the device sets up a kernel's blocks: after the previous kernel on the stream has
/// ended, or while it still runs, which hides the time of the launch. Devices before compute
/// capability 9.0 support only the first. kEarly has an effect if NF_CUDA_STARTS_EARLY is defined:
/// the build defines it if all other devices run code in which AwaitPrevious() waits.
enum class Start : std::uint8_t { kAfterPrevious, kEarly };

/// Launches `kernel` with arguments converted to its parameters. A grid without blocks launches
/// nothing. Errors: DeviceError if the driver rejects the launch.
template <Start kStart = Start::kAfterPrevious, class... P, class... A>
void Launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, Stream stream,
            A&&... args) {
  static_assert(sizeof...(P) == sizeof...(A), "one argument per parameter of the kernel");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  std::tuple<std::remove_cv_t<P>...> values(static_cast<P>(std::forward<A>(args))...);
#if defined(NF_CUDA_EMULATION)
  static_cast<void>(stream);
  const auto thread = [&] { std::apply(kernel, values); };
  const auto call = [](const void* closure) { (*static_cast<const decltype(thread)*>(closure))(); };
  if (!emulation::Run(grid, block, shared_bytes, call, &thread))
    Check(cudaGetLastError(), "launching a kernel");
  emulation::CheckAwaits(kStart == Start::kEarly);
#else
  // A kernel may use 48 KiB without this attribute, including static arrays of less than 32 KiB.
  constexpr std::size_t kSharedWithoutAsking = 16 * 1024;
  const auto* function = reinterpret_cast<const void*>(kernel);
  if (shared_bytes > kSharedWithoutAsking) {
    Check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "giving a kernel shared memory");
  }
  auto pointers = std::apply(
      [](auto&... value) {
        return std::array<void*, sizeof...(value)>{static_cast<void*>(&value)...};
      },
      values);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
#if defined(NF_CUDA_STARTS_EARLY)
  config.numAttrs = kStart == Start::kEarly && CanStartEarly() ? 1 : 0;
#endif
  const cudaError_t error = cudaLaunchKernelExC(&config, function, pointers.data());
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // reports the error only once
  Check(error, "launching a kernel");
#endif
}

/// Calls run<T>() for the type T of FloatTypes with that `dtype`.
template <class Run>
void WithType(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kFloat32:
      return run.template operator()<float>();
    case DType::kFloat16:
      return run.template operator()<Float16>();
    default:
      return run.template operator()<BFloat16>();
  }
}

}  // namespace narrowfloat::cuda
