// SPDX-License-Identifier: Apache-2.0
#pragma once

// NF_DCHECK(condition): ends the program if a precondition of a kernel does not hold. Checks only
// if NF_DCHECKS is defined (presets dev, asan and tsan); otherwise the condition is not evaluated.
// Kernels are noexcept, and the verbs have checked their arguments, so a failure is an error of the
// library.
#if defined(NF_DCHECKS)
#include <cstdio>
#include <cstdlib>
#define NF_DCHECK(condition)                                                     \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "%s:%d: needs %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                              \
    }                                                                            \
  } while (false)
#else
#define NF_DCHECK(condition) static_cast<void>(sizeof(!(condition)))
#endif
