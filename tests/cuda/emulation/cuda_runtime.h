// SPDX-License-Identifier: Apache-2.0
// CUDA's language and runtime on the CPU, as far as narrowfloat's kernels use them, and a little
// more for kernels to come: compiled by g++ before CUDA's own header on the include path. A kernel
// runs when it is launched, block by block, each thread of a block as a fiber. Between barriers the
// threads of a warp run one after another, in the order that NF_EMULATION_ORDER=reverse turns
// around, so that missing barriers change results. Device memory is readable only while a kernel or
// a copy runs: the host's access to it faults. Aborts with a message: deadlocks, and writes beside
// an allocation.
#pragma once

#define NF_CUDA_EMULATION 1

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

// NOLINTBEGIN(bugprone-reserved-identifier,bugprone-macro-parentheses,readability-identifier-naming):
// CUDA's names.

#define __global__
#define __device__
#define __host__
#define __constant__
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

#define NF_EMULATION_VECTORS(name, type)                             \
  struct alignas(2 * sizeof(type)) name##2 {                         \
    type x, y;                                                       \
  };                                                                 \
  struct alignas(sizeof(type) > 4 ? 16 : 4 * sizeof(type)) name##4 { \
    type x, y, z, w;                                                 \
  };                                                                 \
  inline name##2 make_##name##2(type x, type y) {                    \
    return {x, y};                                                   \
  }                                                                  \
  inline name##4 make_##name##4(type x, type y, type z, type w) {    \
    return {x, y, z, w};                                             \
  }
NF_EMULATION_VECTORS(char, signed char)
NF_EMULATION_VECTORS(uchar, unsigned char)
NF_EMULATION_VECTORS(short, short)
NF_EMULATION_VECTORS(ushort, unsigned short)
NF_EMULATION_VECTORS(int, int)
NF_EMULATION_VECTORS(uint, unsigned)
NF_EMULATION_VECTORS(float, float)
NF_EMULATION_VECTORS(double, double)
NF_EMULATION_VECTORS(longlong, long long)
NF_EMULATION_VECTORS(ulonglong, unsigned long long)
#undef NF_EMULATION_VECTORS

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace narrowfloat::cuda::emulation {

enum class WarpOp : std::uint8_t { kBarrier, kShuffle, kBallot, kMax, kMin, kSum, kOr, kAnd };

/// Waits until all lanes of `mask` that have not returned call it. Returns the operation's result:
/// of a shuffle the value of lane `source`, and 0xA5 bytes where that lane takes no part.
std::uint64_t Meet(WarpOp op, unsigned mask, std::uint64_t value, unsigned source);
void MeetBlock();
unsigned Lane();

/// Runs a kernel. Returns false if a device would refuse the sizes.
bool Run(dim3 grid, dim3 block, std::size_t shared_bytes, void (*call)(const void* closure),
         const void* closure);
std::byte* SharedMemory();

/// Returns the number of allocations that are not freed, to find leaks.
std::size_t LiveAllocations();
/// Makes the calls of the runtime after the next `skip` ones on this thread fail, 1 of them.
void FailCall(int skip);
/// Makes the machine one with that many devices.
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
inline void __threadfence() {}
inline void __threadfence_block() {}

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
NF_EMULATION_REDUCE(min, kMin)
NF_EMULATION_REDUCE(add, kSum)
NF_EMULATION_REDUCE(or, kOr)
NF_EMULATION_REDUCE(and, kAnd)
#undef NF_EMULATION_REDUCE

template <class T>
T atomicExch(T* address, T value) {
  return std::atomic_ref<T>(*address).exchange(value, std::memory_order_relaxed);
}
#define NF_EMULATION_ATOMIC(name, type, result)                                                   \
  inline type name(type* address, type value) {                                                   \
    std::atomic_ref<type> item(*address);                                                         \
    type old = item.load(std::memory_order_relaxed);                                              \
    while (                                                                                       \
        !item.compare_exchange_weak(old, static_cast<type>(result), std::memory_order_relaxed)) { \
    }                                                                                             \
    return old;                                                                                   \
  }
NF_EMULATION_ATOMIC(atomicAdd, unsigned, old + value)
NF_EMULATION_ATOMIC(atomicAdd, float, old + value)
NF_EMULATION_ATOMIC(atomicMax, unsigned, old > value ? old : value)
NF_EMULATION_ATOMIC(atomicOr, unsigned, old | value)
#undef NF_EMULATION_ATOMIC

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}
/// Takes 4 of the 8 bytes of a (0 to 3) and b (4 to 7). Selectors with the sign bit are not
/// emulated.
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
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T>
void __stcs(T* address, T value) {
  *address = value;
}
template <class T>
void __stcg(T* address, T value) {
  *address = value;
}

#define NF_EMULATION_MIN_MAX(type)     \
  constexpr type min(type a, type b) { \
    return b < a ? b : a;              \
  }                                    \
  constexpr type max(type a, type b) { \
    return a < b ? b : a;              \
  }
NF_EMULATION_MIN_MAX(int)
NF_EMULATION_MIN_MAX(unsigned)
NF_EMULATION_MIN_MAX(long)
NF_EMULATION_MIN_MAX(unsigned long)
NF_EMULATION_MIN_MAX(long long)
NF_EMULATION_MIN_MAX(unsigned long long)
#undef NF_EMULATION_MIN_MAX
namespace narrowfloat::cuda::emulation {

/// Returns the larger one. Ignores every NaN, as devices do; glibc does not ignore signalling ones.
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
inline float min(float a, float b) {
  return fminf(a, b);
}
inline float max(float a, float b) {
  return fmaxf(a, b);
}

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorNoDevice = 100,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMemoryPoolsSupported = 115,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
using cudaStream_t = struct CUstream_st*;

cudaError_t cudaMalloc(void** data, std::size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream);
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
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream = nullptr);
cudaError_t cudaMemset(void* to, int byte, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t stream = nullptr);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

template <class T>
cudaError_t cudaMalloc(T** data, std::size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(data), bytes);
}
template <class T>
cudaError_t cudaMallocAsync(T** data, std::size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(data), bytes, stream);
}
template <class T>
cudaError_t cudaFuncSetAttribute(T* /*kernel*/, cudaFuncAttribute /*attribute*/, int /*value*/) {
  return cudaSuccess;
}

// NOLINTEND(bugprone-reserved-identifier,bugprone-macro-parentheses,readability-identifier-naming)
