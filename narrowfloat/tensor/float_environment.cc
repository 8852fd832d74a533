// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/tensor/float_environment.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace narrowfloat {

#if defined(__x86_64__)

// MXCSR after reset: nearest-even, no FTZ, no DAZ, all exceptions masked, no flags.
FloatEnvironment::FloatEnvironment() noexcept : saved_(_mm_getcsr()) {
  _mm_setcsr(0x1F80u);
}
FloatEnvironment::~FloatEnvironment() {
  _mm_setcsr(static_cast<unsigned>(saved_));
}

#elif defined(__aarch64__)

// FPCR of 0: nearest-even, no flush to zero, no default NaN, no traps. Does not restore FPSR's
// flags.
FloatEnvironment::FloatEnvironment() noexcept {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}) : "memory");
}
FloatEnvironment::~FloatEnvironment() {
  asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory");
}

#else
#error "narrowfloat: say here how this processor's rounding mode and flush-to-zero are set"
#endif

}  // namespace narrowfloat
