// SPDX-License-Identifier: Apache-2.0
// The parts of CUDA's language and runtime that narrowfloat's kernels and tests use, on the CPU.
// The include path has this header before CUDA's own. A launch runs the kernel before it returns,
// one block after another; each thread of a block is a fiber. Between barriers, the threads of a
// warp run one after another in ascending order, or in descending order with
// NF_EMULATION_ORDER=reverse. A missing barrier gives different results in the two orders. Device
// memory is accessible only while a kernel or a copy runs; at other times the host's access faults.
// A deadlock, or a write outside of an allocation, aborts with a message.
#pragma once

#define NF_CUDA_EMULATION 1

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

// NOLINTBEGIN(bugprone-reserved-identifier,bugprone-macro-parentheses,readability-identifier-naming):
// CUDA's names.

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)  // NOLINT: converts, as CUDA's
      : x(x_), y(y_), z(z_) {}
};

#define NF_EMULATION_VECTORS(name, type)                          \
  struct alignas(2 * sizeof(type)) name##2 {                      \
    type x, y;                                                    \
  };                                                              \
  struct alignas(4 * sizeof(type)) name##4 {                      \
    type x, y, z, w;                                              \
  };                                                              \
  inline name##2 make_##name##2(type x, type y) {                 \
    return {x, y};                                                \
  }                                                               \
  inline name##4 make_##name##4(type x, type y, type z, type w) { \
    return {x, y, z, w};                                          \
  }
NF_EMULATION_VECTORS(uint, unsigned)
NF_EMULATION_VECTORS(float, float)
#undef NF_EMULATION_VECTORS

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

namespace narrowfloat::cuda::emulation {

enum class WarpOp : std::uint8_t { kBarrier, kShuffle, kBallot, kMax, kSum };

/// Waits until all lanes of `mask` that have not returned call it. Returns the operation's result.
/// A shuffle returns the value of lane `source`, or 0xA5 bytes if that lane does not take part.
std::uint64_t Meet(WarpOp op, unsigned mask, std::uint64_t value, unsigned source);
void MeetBlock();
unsigned Lane();

/// Runs a kernel. Returns false if a device would refuse the sizes.
bool Run(dim3 grid, dim3 block, std::size_t shared_bytes, void (*call)(const void* closure),
         const void* closure);
std::byte* SharedMemory();

/// Counts the calls of a launch. CheckAwaits aborts if their number in the last launch is not the
/// number of threads (`early`) or 0.
void CountAwait();
void CheckAwaits(bool early);

/// Returns the number of allocations that are not freed. Tests use it to find leaks.
std::size_t LiveAllocations();
/// Makes the next call of the runtime on this thread fail with cudaErrorUnknown.
void FailNextCall();
/// Sets the number of devices of the machine.
void SetDeviceCount(int count);

template <class T>
std::uint64_t ToBits(T value) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T Shuffle(unsigned mask, T value, unsigned source) {
  const std::uint64_t bits = Meet(WarpOp::kShuffle, mask, ToBits(value), source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Returns the first lane of a lane's segment of `width` lanes, and checks the width.
unsigned Segment(unsigned lane, int width);

}  // namespace narrowfloat::cuda::emulation

inline void __syncthreads() {
  narrowfloat::cuda::emulation::MeetBlock();
}
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  using namespace narrowfloat::cuda::emulation;
  Meet(WarpOp::kBarrier, mask, 0, 0);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  using namespace narrowfloat::cuda::emulation;
  const unsigned first = Segment(Lane(), width);
  return Shuffle(mask, value,
                 first + (static_cast<unsigned>(source) & (static_cast<unsigned>(width) - 1u)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  using namespace narrowfloat::cuda::emulation;
  const unsigned lane = Lane(), source = lane ^ static_cast<unsigned>(lanes);
  const unsigned end = Segment(lane, width) + static_cast<unsigned>(width);
  return Shuffle(mask, value, source < end ? source : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using namespace narrowfloat::cuda::emulation;
  const unsigned lane = Lane(), first = Segment(lane, width);
  return Shuffle(mask, value, lane >= first + delta ? lane - delta : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  using namespace narrowfloat::cuda::emulation;
  const unsigned lane = Lane(), end = Segment(lane, width) + static_cast<unsigned>(width);
  return Shuffle(mask, value, lane + delta < end ? lane + delta : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  using namespace narrowfloat::cuda::emulation;
  return static_cast<unsigned>(Meet(WarpOp::kBallot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}
#define NF_EMULATION_REDUCE(name, op)                                     \
  inline unsigned __reduce_##name##_sync(unsigned mask, unsigned value) { \
    using namespace narrowfloat::cuda::emulation;                         \
    return static_cast<unsigned>(Meet(WarpOp::op, mask, value, 0));       \
  }
NF_EMULATION_REDUCE(max, kMax)
NF_EMULATION_REDUCE(add, kSum)
#undef NF_EMULATION_REDUCE

#define NF_EMULATION_ATOMIC(name, result)                                         \
  inline unsigned name(unsigned* address, unsigned value) {                       \
    std::atomic_ref<unsigned> item(*address);                                     \
    unsigned old = item.load(std::memory_order_relaxed);                          \
    while (!item.compare_exchange_weak(old, result, std::memory_order_relaxed)) { \
    }                                                                             \
    return old;                                                                   \
  }
NF_EMULATION_ATOMIC(atomicExch, value)
NF_EMULATION_ATOMIC(atomicAdd, old + value)
NF_EMULATION_ATOMIC(atomicMax, old > value ? old : value)
NF_EMULATION_ATOMIC(atomicOr, old | value)
#undef NF_EMULATION_ATOMIC

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
/// Selects 4 of the 8 bytes of a (0 to 3) and b (4 to 7). Requires: no selector has the sign bit,
/// 0x8, which is not emulated.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selectors) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (selectors >> 4 * i & 7u) * 8 & 0xFFu) << 8 * i;
  }
  return result;
}

template <class T>
T __ldg(const T* address) {
  return *address;
}

namespace narrowfloat::cuda::emulation {

/// Returns the larger number. Ignores every NaN, as devices do; glibc ignores only quiet NaNs.
inline float Max(float a, float b) {
  if (a != a) return b != b ? std::bit_cast<float>(0x7FFFFFFFu) : b;
  if (b != b) return a;
  return a > b || (a == b && !std::signbit(a)) ? a : b;
}
inline float Min(float a, float b) {
  if (a != a) return b != b ? std::bit_cast<float>(0x7FFFFFFFu) : b;
  if (b != b) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}

}  // namespace narrowfloat::cuda::emulation

#define fmaxf(a, b) narrowfloat::cuda::emulation::Max(a, b)
#define fminf(a, b) narrowfloat::cuda::emulation::Min(a, b)

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMemoryPoolsSupported = 115,
};
using cudaStream_t = struct CUstream_st*;

cudaError_t cudaMalloc(void** data, std::size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream);

// A pool of memory, whose attributes are ignored.
using cudaMemPool_t = struct CUmemPoolHandle_st*;
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  struct {
    cudaMemLocationType type;
    int id;
  } location;
};
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

// NOLINTEND(bugprone-reserved-identifier,bugprone-macro-parentheses,readability-identifier-naming)
