// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat::cpu {

/// Detects whether operations of the calling thread rounded a result or (x86) had a subnormal
/// operand: the processor sets a flag for each case and keeps it set. The constructor clears the
/// thread's flags; the destructor restores them.
///
/// Covers only operations whose results are stored to memory before a member is called: the
/// compiler may move other arithmetic across the call.
class FloatFlags {
 public:
#if defined(__x86_64__)
  using Word = std::uint32_t;  // MXCSR
  static constexpr Word kInexact = 0x20, kSubnormalOperand = 0x02;
#elif defined(__aarch64__)
  using Word = std::uint64_t;  // FPSR
  static constexpr Word kInexact = 0x10;
#endif

  FloatFlags() noexcept : saved_(Get()), are_reported_(AreReported()) {
    Clear();
  }
  ~FloatFlags() {
    Set(saved_);
  }
  FloatFlags(const FloatFlags&) = delete;
  FloatFlags& operator=(const FloatFlags&) = delete;

  /// Returns true if one of `flags` was set since the construction or since Clear: kInexact if a
  /// result was rounded or overflowed, kSubnormalOperand if an operand was a subnormal number.
  /// Always returns true on machines that do not set the flags, such as some emulators.
  bool AreSet(Word flags) const noexcept {
    return !are_reported_ || (Get() & flags) != 0;
  }
  void Clear() noexcept {
    Set(saved_ & ~kAll);
  }

 private:
#if defined(__x86_64__)
  static constexpr Word kAll = 0x3F, kReported = kInexact | kSubnormalOperand;
  static Word Get() noexcept {
    Word word;
    asm volatile("stmxcsr %0" : "=m"(word) : : "memory");
    return word;
  }
  static void Set(Word word) noexcept {
    asm volatile("ldmxcsr %0" : : "m"(word) : "memory");
  }
#elif defined(__aarch64__)
  static constexpr Word kAll = 0x9F, kReported = kInexact;
  static Word Get() noexcept {
    Word word;
    asm volatile("mrs %0, fpsr" : "=r"(word) : : "memory");
    return word;
  }
  static void Set(Word word) noexcept {
    asm volatile("msr fpsr, %0" : : "r"(word) : "memory");
  }
#endif

  /// Returns true if this machine sets all flags of kReported.
  static bool AreReported() noexcept {
    static const bool are = [] {
      const Word saved = Get();
      Set(saved & ~kAll);
      volatile float one = 1.0f, subnormal = 0x1p-130f, sum;
      sum = one + subnormal;
      static_cast<void>(sum);
      const bool is_set = (Get() & kReported) == kReported;
      Set(saved);
      return is_set;
    }();
    return are;
  }

  const Word saved_;
  const bool are_reported_;
};

}  // namespace narrowfloat::cpu
