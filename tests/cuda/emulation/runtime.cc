// SPDX-License-Identifier: Apache-2.0
// Device memory, the functions of CUDA's runtime and their errors.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "tests/cuda/emulation/internal.h"

namespace narrowfloat::cuda::emulation {

void Die(const char* format, ...) {
  std::fputs("cuda emulation: ", stderr);
  std::va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputs("\n", stderr);
  std::abort();
}

std::size_t PageBytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* Map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void SetPoisoned(const void* begin, std::size_t bytes, bool poisoned) {
#if NF_ASAN
  poisoned ? ASAN_POISON_MEMORY_REGION(begin, bytes) : ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
#else
  static_cast<void>(begin), static_cast<void>(bytes), static_cast<void>(poisoned);
#endif
}

__attribute__((no_sanitize_address)) const std::byte* FindWrite(const std::byte* begin,
                                                                const std::byte* end) {
  for (const std::byte* at = begin; at < end; ++at) {
    if (*at != kGuard) return at;
  }
  return nullptr;
}

namespace {

constexpr std::size_t kMaxThreads = 1024, kMaxGrid = 65535;
// The smallest limit of the architectures that kernels are built for, of compute capability 12.0.
constexpr std::size_t kMaxShared = std::size_t{99} * 1024;

/// A mapping of whole pages: kGuardBytes of guards, the memory, and guards up to the end.
struct Allocation {
  std::byte* mapping;
  std::size_t mapped, bytes;

  std::byte* Data() const { return mapping + kGuardBytes; }
};

class DeviceMemory {
 public:
  void* Allocate(std::size_t bytes) {
    const std::size_t page = PageBytes();
    const std::size_t mapped = (bytes + 2 * kGuardBytes + page - 1) / page * page;
    auto* mapping = static_cast<std::byte*>(Map(mapped));
    if (mapping == nullptr) return nullptr;
    const Allocation allocation{mapping, mapped, bytes};
    std::memset(mapping, static_cast<int>(kGuard), mapped);
    std::memset(allocation.Data(), static_cast<int>(kPoison), bytes);
    SetPoisoned(mapping, mapped, true);
    SetPoisoned(allocation.Data(), bytes, false);
    const std::lock_guard lock(mutex_);
    allocations_.emplace(allocation.Data(), allocation);
    if (users_ == 0) Protect(allocation, PROT_NONE);
    return allocation.Data();
  }

  bool Free(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(static_cast<std::byte*>(data));
    if (found == allocations_.end()) return false;
    const Allocation allocation = found->second;
    Protect(allocation, PROT_READ);
    CheckGuards(allocation);
    allocations_.erase(found);
    SetPoisoned(allocation.mapping, allocation.mapped, false);
    munmap(allocation.mapping, allocation.mapped);
    return true;
  }

  /// Returns true if the bytes are all in one allocation, or all outside of allocations.
  bool Contains(const void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto* begin = static_cast<const std::byte*>(data);
    auto after = allocations_.upper_bound(const_cast<std::byte*>(begin));  // NOLINT
    if (after == allocations_.begin()) return true;
    const Allocation& allocation = std::prev(after)->second;
    if (begin >= allocation.mapping + allocation.mapped) return true;
    return begin + bytes <= allocation.Data() + allocation.bytes;
  }

  void Enter() {
    const std::lock_guard lock(mutex_);
    if (users_++ == 0) ProtectAll(PROT_READ | PROT_WRITE);
  }

  void Leave() {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, allocation] : allocations_) CheckGuards(allocation);
    if (--users_ == 0) ProtectAll(PROT_NONE);
  }

  std::size_t Count() {
    const std::lock_guard lock(mutex_);
    return allocations_.size();
  }

 private:
  static void Protect(const Allocation& allocation, int protection) {
    if (mprotect(allocation.mapping, allocation.mapped, protection) != 0) Die("mprotect failed");
  }

  void ProtectAll(int protection) {
    for (const auto& [data, allocation] : allocations_) Protect(allocation, protection);
  }

  static void CheckGuards(const Allocation& allocation) {
    const std::byte* const data = allocation.Data();
    CheckGuard(allocation, allocation.mapping, data);
    CheckGuard(allocation, data + allocation.bytes, allocation.mapping + allocation.mapped);
  }

  static void CheckGuard(const Allocation& allocation, const std::byte* begin,
                         const std::byte* end) {
    const std::byte* at = FindWrite(begin, end);
    if (at == nullptr) return;
    Die("byte %td of an allocation of %zu bytes was written to", at - allocation.Data(),
        allocation.bytes);
  }

  std::mutex mutex_;
  std::map<std::byte*, Allocation> allocations_;
  int users_ = 0;
};

DeviceMemory& Device() {
  static auto* const memory = new DeviceMemory;  // never destroyed: statics of other files use it
  return *memory;
}

/// Makes device memory accessible during its lifetime.
struct Access {
  Access() { Device().Enter(); }
  ~Access() { Device().Leave(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

constinit thread_local cudaError_t last_error = cudaSuccess;
constinit thread_local bool next_call_fails = false;
constinit thread_local std::size_t launched_threads = 0, awaits = 0;  // in the last launch
std::atomic<int> device_count = 1;

/// Returns the result of a call of the runtime: the result of `body`, or the error that
/// FailNextCall() or SetDeviceCount(0) causes.
template <class F>
cudaError_t Call(F&& body) {
  cudaError_t error = device_count > 0 ? cudaSuccess : cudaErrorNoDevice;
  if (std::exchange(next_call_fails, false)) error = cudaErrorUnknown;
  if (error == cudaSuccess) error = body();
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t Allocate(void** data, std::size_t bytes) {
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  *data = Device().Allocate(bytes);
  return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t Free(void* data) {
  return data == nullptr || Device().Free(data) ? cudaSuccess : cudaErrorInvalidValue;
}

struct ErrorText {
  const char* name;
  const char* text;
};

ErrorText TextOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return {"cudaSuccess", "no error"};
    case cudaErrorInvalidValue:
      return {"cudaErrorInvalidValue", "invalid argument"};
    case cudaErrorMemoryAllocation:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorInvalidConfiguration:
      return {"cudaErrorInvalidConfiguration", "invalid configuration argument"};
    case cudaErrorNoDevice:
      return {"cudaErrorNoDevice", "no CUDA-capable device is detected"};
    case cudaErrorUnknown:
      break;
  }
  return {"cudaErrorUnknown", "unknown error"};
}

}  // namespace

bool Run(dim3 grid, dim3 block, std::size_t shared_bytes, void (*call)(const void* closure),
         const void* closure) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const bool fits = threads > 0 && threads <= kMaxThreads && block.z <= 64 &&
                    shared_bytes <= kMaxShared && grid.x <= 0x7FFFFFFFu && grid.y <= kMaxGrid &&
                    grid.z <= kMaxGrid;
  const cudaError_t error =
      Call([&] { return fits ? cudaSuccess : cudaErrorInvalidConfiguration; });
  if (error != cudaSuccess) return false;
  launched_threads = threads * grid.x * grid.y * grid.z;
  awaits = 0;
  const Access access;
  // Device code does not depend on the floating-point settings of the host's thread.
  std::fenv_t environment;
  std::fegetenv(&environment);
  std::fesetenv(FE_DFL_ENV);
  RunBlocks(grid, block, shared_bytes, call, closure);
  std::fesetenv(&environment);
  return true;
}

void CountAwait() {
  ++awaits;
}

void CheckAwaits(bool early) {
  const std::size_t expected = early ? launched_threads : 0;
  if (awaits != expected)
    Die("AwaitPrevious was called by %zu of %zu threads of a kernel that starts %s", awaits,
        launched_threads, early ? "early" : "after the previous one");
}

std::size_t LiveAllocations() {
  return Device().Count();
}

void FailNextCall() {
  next_call_fails = true;
}

void SetDeviceCount(int count) {
  device_count = count;
}

}  // namespace narrowfloat::cuda::emulation

using namespace narrowfloat::cuda::emulation;  // NOLINT(google-build-using-namespace)

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return Call([&] { return Allocate(data, bytes); });
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* /*properties*/) {
  static char memory;
  *pool = reinterpret_cast<cudaMemPool_t>(&memory);
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t /*pool*/, cudaMemPoolAttr /*attribute*/,
                                    void* /*value*/) {
  return cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** data, std::size_t bytes, cudaMemPool_t /*pool*/,
                                    cudaStream_t /*stream*/) {
  return cudaMalloc(data, bytes);
}

cudaError_t cudaFree(void* data) {
  return Call([&] { return Free(data); });
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t /*stream*/) {
  return cudaFree(data);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t /*stream*/) {
  return Call([&] {
    if (!Device().Contains(to, bytes) || !Device().Contains(from, bytes))
      return cudaErrorInvalidValue;
    const Access access;
    if (bytes > 0) std::memmove(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return Call([] { return cudaSuccess; });
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

const char* cudaGetErrorString(cudaError_t error) {
  return TextOf(error).text;
}

const char* cudaGetErrorName(cudaError_t error) {
  return TextOf(error).name;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return Call([] { return cudaSuccess; });
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return Call([&] {
    *count = device_count;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  return Call([&] {
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        break;
      case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        break;
      default:
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}
