// SPDX-License-Identifier: Apache-2.0
// The threads of a block as fibers, their barriers and the operations of a warp.
#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tests/cuda/emulation/internal.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// NOLINTBEGIN(readability-identifier-naming): CUDA's names.
constinit thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
constinit thread_local dim3 blockDim, gridDim;
// NOLINTEND(readability-identifier-naming)

#if defined(__x86_64__)
// Pushes the callee-saved registers to this stack and stores its top in *save. Then switches to the
// stack `load` and restores its registers. Does not save the control words of floating point, which
// are the same in all fibers.
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
constexpr std::size_t kStackBytes = NF_ASAN ? 256 * 1024 : 64 * 1024;

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
  // The warp operation at which the fiber waits.
  WarpOp op;
  unsigned mask, source;
  std::uint64_t value, result;
};

/// Runs blocks on one thread of the host.
class Scheduler {
 public:
  Scheduler() = default;
  ~Scheduler() {
    for (const std::unique_ptr<Fiber>& fiber : fibers_) munmap(fiber->stack, StackMapping());
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Returns the scheduler of the calling thread of the host.
  static Scheduler& Own() {
    thread_local Scheduler scheduler;
    return scheduler;
  }

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
    if (const std::byte* at = FindWrite(shared_end, shared_end + guard_bytes); at != nullptr)
      Die("byte %td of %zu bytes of shared memory was written to", at - shared_, shared_bytes);
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
    // The stack as nf_emulation_switch leaves it: six registers and the return address.
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
    // Other threads may wait only for this thread. It no longer counts.
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

  /// Computes the operation of the lanes of `mask`, if all lanes that have not returned wait at it.
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
        case WarpOp::kSum:
          all += value;
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

  /// Switches from the current fiber to Resume().
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

/// Returns the scheduler of the calling thread, which must run a kernel.
Scheduler& Running(const char* what) {
  Scheduler& scheduler = Scheduler::Own();
  if (!scheduler.IsRunning()) Die("%s is called outside a kernel", what);
  return scheduler;
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

void RunBlocks(dim3 grid, dim3 block, std::size_t shared_bytes, void (*call)(const void* closure),
               const void* closure) {
  Scheduler::Own().RunBlocks(grid, block, shared_bytes, call, closure);
}

}  // namespace narrowfloat::cuda::emulation
