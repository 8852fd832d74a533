// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace narrowfloat::cpu {

/// Tells whether additions and multiplications of the calling thread were exact: the processor sets
/// the inexact flag of IEEE 754 when it rounds a result or one overflows, and the flag stays set.
/// Clears the thread's flags; the destructor restores them.
///
/// Covers the operations whose results are stored to memory before a call: the compiler may move
/// other arithmetic across it.
class FloatFlags {
 public:
  FloatFlags() noexcept : saved_(Get()), are_reported_(AreReported()) { Clear(); }
  ~FloatFlags() { Set(saved_); }
  FloatFlags(const FloatFlags&) = delete;
  FloatFlags& operator=(const FloatFlags&) = delete;

  /// Returns true if an operation since the construction, or since Clear, was not exact; always, if
  /// this machine sets no flags, as some emulators do not.
  bool WereInexact() const noexcept { return !are_reported_ || (Get() & kInexact) != 0; }
  void Clear() noexcept { Set(saved_ & ~kAll); }

 private:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kInexact = 0x20, kAll = 0x3F;  // of MXCSR
  static Word Get() noexcept {
    Word word;
    asm volatile("stmxcsr %0" : "=m"(word) : : "memory");
    return word;
  }
  static void Set(Word word) noexcept {
    asm volatile("ldmxcsr %0" : : "m"(word) : "memory");
  }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kInexact = 0x10, kAll = 0x9F;  // of FPSR
  static Word Get() noexcept {
    Word word;
    asm volatile("mrs %0, fpsr" : "=r"(word) : : "memory");
    return word;
  }
  static void Set(Word word) noexcept {
    asm volatile("msr fpsr, %0" : : "r"(word) : "memory");
  }
#endif

  /// Returns true if a rounding sets its flag.
  static bool AreReported() noexcept {
    static const bool are = [] {
      const Word saved = Get();
      Set(saved & ~kAll);
      volatile float one = 1.0f, small = 0x1p-60f, sum;
      sum = one + small;
      static_cast<void>(sum);
      const bool is_set = (Get() & kInexact) != 0;
      Set(saved);
      return is_set;
    }();
    return are;
  }

  const Word saved_;
  const bool are_reported_;
};

}  // namespace narrowfloat::cpu
