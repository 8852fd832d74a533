// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "tests/cuda/emulation/cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define NF_ASAN 1
#else
#define NF_ASAN 0
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// NOLINTBEGIN(readability-identifier-naming): CUDA's names.
constinit thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
constinit thread_local dim3 blockDim, gridDim;
// NOLINTEND(readability-identifier-naming)

#if defined(__x86_64__)
// Saves the registers that a call preserves on this stack, its top in *save, and goes on with those
// on the stack `load`. The control words of floating point are the same in all fibers.
extern "C" void nf_emulation_switch(void** save, void* load);
asm(R"(
  .text
  .p2align 4
  .hidden nf_emulation_switch
  .globl nf_emulation_switch
  .type nf_emulation_switch, @function
nf_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size nf_emulation_switch, .-nf_emulation_switch
)");
#endif

namespace narrowfloat::cuda::emulation {
namespace {

constexpr unsigned kLanes = 32;
constexpr std::size_t kMaxThreads = 1024, kMaxGrid = 65535;
// The least of the architectures that kernels are built for: compute capability 12.0.
constexpr std::size_t kMaxShared = std::size_t{99} * 1024;
constexpr std::byte kPoison{0xA5}, kGuard{0x5A};
constexpr std::size_t kGuardBytes = 256;  // also the alignment of device memory
constexpr std::size_t kStackBytes = NF_ASAN ? 256 * 1024 : 64 * 1024;

[[noreturn]] __attribute__((format(printf, 1, 2))) void Die(const char* format, ...) {
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

// ---- Device memory ----

/// A mapping of whole pages: kGuardBytes of guard, the memory, and guard to the end.
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

  /// Returns true if the bytes are of one allocation, or of none.
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

#if NF_ASAN
  __attribute__((no_sanitize_address))
#endif
  static void
  CheckGuards(const Allocation& allocation) {
    const std::byte* const end = allocation.mapping + allocation.mapped;
    const std::byte* const data_end = allocation.Data() + allocation.bytes;
    for (const std::byte* at = allocation.mapping; at < allocation.Data(); ++at) {
      if (*at != kGuard) Beside(allocation, at);
    }
    for (const std::byte* at = data_end; at < end; ++at) {
      if (*at != kGuard) Beside(allocation, at);
    }
  }

  [[noreturn]] static void Beside(const Allocation& allocation, const std::byte* at) {
    Die("byte %td of an allocation of %zu bytes was written to", at - allocation.Data(),
        allocation.bytes);
  }

  std::mutex mutex_;
  std::map<std::byte*, Allocation> allocations_;
  int users_ = 0;
};

DeviceMemory& Device() {
  static auto* const memory = new DeviceMemory;  // lives as long as objects of other files
  return *memory;
}

/// While it lives, device memory is accessible.
struct Access {
  Access() { Device().Enter(); }
  ~Access() { Device().Leave(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

// ---- Threads of a block ----

enum class State : std::uint8_t { kReady, kAtBlock, kAtWarp, kReturned };

struct Fiber {
  std::byte* stack = nullptr;
#if defined(__x86_64__)
  void* top = nullptr;
#else
  ucontext_t context;
#endif
  uint3 index;
  State state = State::kReturned;
  // Of the warp operation that it waits at.
  WarpOp op;
  unsigned mask, source;
  std::uint64_t value, result;
};

/// Runs blocks on the calling thread of the system.
class Scheduler {
 public:
  Scheduler() = default;
  ~Scheduler() {
    for (const std::unique_ptr<Fiber>& fiber : fibers_) munmap(fiber->stack, StackMapping());
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool IsRunning() const { return current_ != nullptr; }
  unsigned Lane() const { return static_cast<unsigned>(current_number_ % kLanes); }
  std::byte* Shared() const { return shared_; }

  void RunBlocks(dim3 grid, dim3 block, std::size_t shared_bytes, void (*call)(const void*),
                 const void* closure) {
    const char* order = std::getenv("NF_EMULATION_ORDER");
    reverse_ = order != nullptr && std::strcmp(order, "reverse") == 0;
    call_ = call, closure_ = closure;
    threads_ = std::size_t{block.x} * block.y * block.z;
    while (fibers_.size() < threads_) AddFiber();
    blockDim = block, gridDim = grid;
    std::vector<std::byte> memory(shared_bytes + 16 + kGuardBytes);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    shared_ = memory.data() + (16 - address % 16) % 16;
    std::byte* const shared_end = shared_ + shared_bytes;
    const auto guard_bytes = static_cast<std::size_t>(memory.data() + memory.size() - shared_end);
    std::memset(shared_end, static_cast<int>(kGuard), guard_bytes);
    SetPoisoned(shared_end, guard_bytes, true);
    const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
    for (std::size_t i = 0; i < blocks; ++i) {
      const std::size_t number = reverse_ ? blocks - 1 - i : i;
      blockIdx = {static_cast<unsigned>(number % grid.x),
                  static_cast<unsigned>(number / grid.x % grid.y),
                  static_cast<unsigned>(number / grid.x / grid.y)};
      std::memset(shared_, static_cast<int>(kPoison), shared_bytes);
      RunBlock();
    }
    SetPoisoned(shared_end, guard_bytes, false);
    for (const std::byte* at = shared_end; at < shared_end + guard_bytes; ++at) {
      if (*at != kGuard)
        Die("byte %td of %zu bytes of shared memory was written to", at - shared_, shared_bytes);
    }
    shared_ = nullptr;
  }

  std::uint64_t Meet(WarpOp op, unsigned mask, std::uint64_t value, unsigned source) {
    Fiber& fiber = *current_;
    if ((mask >> Lane() & 1u) == 0)
      Die("lane %u calls a warp operation with the mask %08x, without its own bit", Lane(), mask);
    fiber.op = op, fiber.mask = mask, fiber.value = value, fiber.source = source;
    const std::size_t warp = current_number_ / kLanes;
    fiber.state = State::kAtWarp;
    CompleteWarp(warp, mask);
    if (fiber.state != State::kReady) Yield();
    return fiber.result;
  }

  void MeetBlock() {
    current_->state = State::kAtBlock;
    ++at_block_;
    CompleteBlock();
    if (current_->state != State::kReady) Yield();
  }

 private:
  static std::size_t StackMapping() { return kStackBytes + PageBytes(); }

  void AddFiber() {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack = static_cast<std::byte*>(Map(StackMapping()));
    if (fiber->stack == nullptr) throw std::bad_alloc();
    mprotect(fiber->stack, PageBytes(), PROT_NONE);  // an overflow faults
#if defined(__x86_64__)
    // As nf_emulation_switch leaves a stack: six registers and the address to return to.
    auto* top = reinterpret_cast<std::uintptr_t*>(fiber->stack + StackMapping());
    *--top = 0;
    *--top = reinterpret_cast<std::uintptr_t>(&Loop);
    for (int i = 0; i < 6; ++i) *--top = 0;
    fiber->top = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack + PageBytes();
    fiber->context.uc_stack.ss_size = kStackBytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, &Loop, 0);
#endif
    fibers_.push_back(std::move(fiber));
  }

  static Scheduler& Own() {
    thread_local Scheduler scheduler;
    return scheduler;
  }
  friend Scheduler& Current();

  /// Runs one thread after another on a fiber.
  static void Loop() {
    Scheduler& own = Own();
    own.AfterSwitch(nullptr);
    while (true) {
      [&]() noexcept { own.call_(own.closure_); }();
      own.Return();
    }
  }

  void Return() {
    Fiber& fiber = *current_;
    fiber.state = State::kReturned;
    --live_;
    const std::size_t warp = current_number_ / kLanes;
    // What others wait for may be complete without this thread.
    for (std::size_t i = warp * kLanes; i < threads_ && i < (warp + 1) * kLanes; ++i) {
      if (fibers_[i]->state == State::kAtWarp) CompleteWarp(warp, fibers_[i]->mask);
    }
    CompleteBlock();
    Yield();
  }

  void CompleteBlock() {
    if (at_block_ == 0 || at_block_ != live_) return;
    for (std::size_t i = 0; i < threads_; ++i) {
      if (fibers_[i]->state == State::kAtBlock) fibers_[i]->state = State::kReady;
    }
    at_block_ = 0;
  }

  /// Computes the operation of the lanes of `mask`, if all that have not returned wait at it.
  void CompleteWarp(std::size_t warp, unsigned mask) {
    const std::size_t first = warp * kLanes;
    Fiber* lanes[kLanes] = {};
    std::uint64_t all = 0;
    bool is_first = true;
    for (unsigned lane = 0; lane < kLanes && first + lane < threads_; ++lane) {
      Fiber& fiber = *fibers_[first + lane];
      if ((mask >> lane & 1u) == 0 || fiber.state == State::kReturned) continue;
      if (fiber.state != State::kAtWarp || fiber.mask != mask) return;
      lanes[lane] = &fiber;
    }
    WarpOp op{};
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      if (lanes[lane] == nullptr) continue;
      const std::uint64_t value = lanes[lane]->value;
      if (!is_first && lanes[lane]->op != op)
        Die("lanes of a warp meet at different operations, in %s", Place().text);
      op = lanes[lane]->op;
      switch (op) {
        case WarpOp::kBarrier:
        case WarpOp::kShuffle:
          break;
        case WarpOp::kBallot:
          all |= value << lane;
          break;
        case WarpOp::kMax:
          all = is_first || value > all ? value : all;
          break;
        case WarpOp::kMin:
          all = is_first || value < all ? value : all;
          break;
        case WarpOp::kSum:
          all += value;
          break;
        case WarpOp::kOr:
          all |= value;
          break;
        case WarpOp::kAnd:
          all = is_first ? value : all & value;
          break;
      }
      is_first = false;
    }
    for (Fiber* fiber : lanes) {
      if (fiber == nullptr) continue;
      fiber->result = all;
      if (op == WarpOp::kShuffle) {
        const Fiber* source = fiber->source < kLanes ? lanes[fiber->source] : nullptr;
        fiber->result = source != nullptr ? source->value : 0xA5A5A5A5A5A5A5A5u;
      }
      fiber->state = State::kReady;
    }
  }

  void RunBlock() {
    live_ = threads_, at_block_ = 0;
    for (std::size_t i = 0; i < threads_; ++i) {
      fibers_[i]->state = State::kReady;
      fibers_[i]->index = {static_cast<unsigned>(i % blockDim.x),
                           static_cast<unsigned>(i / blockDim.x % blockDim.y),
                           static_cast<unsigned>(i / blockDim.x / blockDim.y)};
    }
    const std::size_t warps = (threads_ + kLanes - 1) / kLanes;
    while (live_ > 0) {
      bool progress = false;
      for (std::size_t i = 0; i < warps; ++i) {
        while (RunWarp(reverse_ ? warps - 1 - i : i)) progress = true;
      }
      if (!progress) Deadlock();
    }
  }

  bool RunWarp(std::size_t warp) {
    bool progress = false;
    for (unsigned i = 0; i < kLanes; ++i) {
      const std::size_t number = warp * kLanes + (reverse_ ? kLanes - 1 - i : i);
      if (number >= threads_ || fibers_[number]->state != State::kReady) continue;
      Resume(number);
      progress = true;
    }
    return progress;
  }

  void Resume(std::size_t number) {
    current_ = fibers_[number].get();
    current_number_ = number;
    threadIdx = current_->index;
#if NF_ASAN
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, current_->stack + PageBytes(), kStackBytes);
#endif
#if defined(__x86_64__)
    nf_emulation_switch(&top_, current_->top);
#else
    swapcontext(&context_, &current_->context);
#endif
#if NF_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    current_ = nullptr;
  }

  /// Goes back from a fiber to Resume().
  void Yield() {
    Fiber* fiber = current_;
    void* fake_stack = nullptr;
#if NF_ASAN
    __sanitizer_start_switch_fiber(&fake_stack, system_stack_, system_stack_bytes_);
#endif
#if defined(__x86_64__)
    nf_emulation_switch(&fiber->top, top_);
#else
    swapcontext(&fiber->context, &context_);
#endif
    AfterSwitch(fake_stack);
  }

  void AfterSwitch([[maybe_unused]] void* fake_stack) {
#if NF_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, &system_stack_, &system_stack_bytes_);
#endif
  }

  struct PlaceText {
    char text[64];
  };
  static PlaceText Place() {
    PlaceText place{};
    std::snprintf(place.text, sizeof place.text, "block (%u, %u, %u)", blockIdx.x, blockIdx.y,
                  blockIdx.z);
    return place;
  }

  [[noreturn]] void Deadlock() const {
    std::size_t at_warp = 0, returned = 0;
    for (std::size_t i = 0; i < threads_; ++i) {
      if (fibers_[i]->state == State::kAtWarp) ++at_warp;
      if (fibers_[i]->state == State::kReturned) ++returned;
    }
    Die("deadlock in %s: of %zu threads, %zu wait at __syncthreads, %zu at warp operations, %zu "
        "have returned",
        Place().text, threads_, at_block_, at_warp, returned);
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* current_ = nullptr;
  std::size_t current_number_ = 0, threads_ = 0, live_ = 0, at_block_ = 0;
  std::byte* shared_ = nullptr;
  void (*call_)(const void*) = nullptr;
  const void* closure_ = nullptr;
  bool reverse_ = false;
#if defined(__x86_64__)
  void* top_ = nullptr;
#else
  ucontext_t context_;
#endif
#if NF_ASAN
  const void* system_stack_ = nullptr;
  std::size_t system_stack_bytes_ = 0;
#endif
};

Scheduler& Current() {
  return Scheduler::Own();
}

Scheduler& Running(const char* what) {
  Scheduler& scheduler = Current();
  if (!scheduler.IsRunning()) Die("%s is called outside a kernel", what);
  return scheduler;
}

// ---- The runtime ----

constinit thread_local cudaError_t last_error = cudaSuccess;
constinit thread_local int calls_until_failure = -1;
std::atomic<int> device_count = 1;

/// Returns the result of a call of the runtime, once what FailCall() asked for is done.
template <class F>
cudaError_t Call(F&& body) {
  cudaError_t error = device_count > 0 ? cudaSuccess : cudaErrorNoDevice;
  if (calls_until_failure >= 0 && calls_until_failure-- == 0) error = cudaErrorUnknown;
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

}  // namespace

std::uint64_t Meet(WarpOp op, unsigned mask, std::uint64_t value, unsigned source) {
  return Running("a warp operation").Meet(op, mask, value, source);
}

void MeetBlock() {
  Running("__syncthreads").MeetBlock();
}

unsigned Lane() {
  return Running("a warp operation").Lane();
}

unsigned Segment(unsigned lane, int width) {
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width)))
    Die("the width of a shuffle must be a power of two up to 32, got %d", width);
  return lane & ~(static_cast<unsigned>(width) - 1u);
}

std::byte* SharedMemory() {
  return Running("DynamicShared").Shared();
}

bool Run(dim3 grid, dim3 block, std::size_t shared_bytes, void (*call)(const void* closure),
         const void* closure) {
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const bool fits = threads > 0 && threads <= kMaxThreads && block.z <= 64 &&
                    shared_bytes <= kMaxShared && grid.x <= 0x7FFFFFFFu && grid.y <= kMaxGrid &&
                    grid.z <= kMaxGrid;
  const cudaError_t error =
      Call([&] { return fits ? cudaSuccess : cudaErrorInvalidConfiguration; });
  if (error != cudaSuccess) return false;
  const Access access;
  // A device does not know the settings of the host's thread.
  std::fenv_t environment;
  std::fegetenv(&environment);
  std::fesetenv(FE_DFL_ENV);
  Current().RunBlocks(grid, block, shared_bytes, call, closure);
  std::fesetenv(&environment);
  return true;
}

std::size_t LiveAllocations() {
  return Device().Count();
}

void FailCall(int skip) {
  calls_until_failure = skip;
}

void SetDeviceCount(int count) {
  device_count = count;
}

}  // namespace narrowfloat::cuda::emulation

using namespace narrowfloat::cuda::emulation;  // NOLINT(google-build-using-namespace)

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return Call([&] { return Allocate(data, bytes); });
}

cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t /*stream*/) {
  return cudaMalloc(data, bytes);
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
                                    cudaStream_t stream) {
  return cudaMallocAsync(data, bytes, stream);
}

cudaError_t cudaFree(void* data) {
  return Call([&] { return Free(data); });
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t /*stream*/) {
  return cudaFree(data);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  return Call([&] {
    if (!Device().Contains(to, bytes) || !Device().Contains(from, bytes))
      return cudaErrorInvalidValue;
    const Access access;
    if (bytes > 0) std::memmove(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t /*stream*/) {
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void* to, int byte, std::size_t bytes) {
  return Call([&] {
    if (!Device().Contains(to, bytes)) return cudaErrorInvalidValue;
    const Access access;
    if (bytes > 0) std::memset(to, byte, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t /*stream*/) {
  return cudaMemset(to, byte, bytes);
}

cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return Call([] { return cudaSuccess; });
}

cudaError_t cudaDeviceSynchronize() {
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
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorUnknown:
      break;
  }
  return "unknown error";
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorUnknown:
      break;
  }
  return "cudaErrorUnknown";
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
      case cudaDevAttrComputeCapabilityMajor:
        *value = 8;
        break;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(kMaxShared);
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
