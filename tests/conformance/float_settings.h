// SPDX-License-Identifier: Apache-2.0
// Floating-point settings that a caller of the library may set for its thread.
#pragma once

#include <array>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace narrowfloat {

/// Returns the calling thread's control register, MXCSR or FPCR, without the status flags, which
/// operations set.
inline std::uint64_t FloatControl() {
#if defined(__x86_64__)
  constexpr unsigned kStatusFlags = 0x3F;
  return _mm_getcsr() & ~kStatusFlags;
#elif defined(__aarch64__)
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#endif
}

struct FloatSettings {
  int rounding = FE_TONEAREST;
  bool flush = false;  // subnormal operands and results become zero

  /// Sets the calling thread's control register.
  void Apply() const {
    std::fesetround(rounding);
#if defined(__x86_64__)
    constexpr unsigned kFlush = 0x8040;  // FTZ and DAZ
    _mm_setcsr(flush ? _mm_getcsr() | kFlush : _mm_getcsr() & ~kFlush);
#elif defined(__aarch64__)
    constexpr std::uint64_t kFlush = (1u << 24) | (1u << 19);  // FZ and FZ16
    const std::uint64_t control = flush ? FloatControl() | kFlush : FloatControl() & ~kFlush;
    asm volatile("msr fpcr, %0" : : "r"(control) : "memory");
#endif
  }
};

/// Returns every rounding mode, with and without flush to zero.
inline std::array<FloatSettings, 8> AllFloatSettings() {
  std::array<FloatSettings, 8> all;
  std::size_t i = 0;
  for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    for (const bool flush : {false, true}) all[i++] = {rounding, flush};
  }
  return all;
}

}  // namespace narrowfloat
