// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat::cpu {

/// Tells whether the calling thread's operations rounded a result or had a subnormal operand: the
/// processor sets a flag for each, which stays set. Clears the thread's flags; the destructor
/// restores them.
///
/// Covers the operations whose results are stored to memory before a call: the compiler may move
/// other arithmetic across it.
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

  /// Returns true if one of `flags` was set since the construction, or since Clear: kInexact when a
  /// result was rounded or overflowed, kSubnormalOperand when an operand was a subnormal number.
  /// Returns true always, if this machine sets no flags, as some emulators do not.
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

  /// Returns true if operations set their flags.
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
