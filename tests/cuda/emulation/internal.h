// SPDX-License-Identifier: Apache-2.0
// Functions for guarded memory and fatal errors, which all files of the emulation use.
#pragma once

#include <cstddef>

#include "tests/cuda/emulation/cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define NF_ASAN 1
#else
#define NF_ASAN 0
#endif

namespace narrowfloat::cuda::emulation {

// The contents of new memory and of guards.
inline constexpr std::byte kPoison{0xA5}, kGuard{0x5A};
inline constexpr std::size_t kGuardBytes = 256;  // also the alignment of device memory

/// Prints a message and aborts.
[[noreturn]] __attribute__((format(printf, 1, 2))) void Die(const char* format, ...);

/// Returns the size of a page.
std::size_t PageBytes();

/// Returns new zeroed pages, or null.
void* Map(std::size_t bytes);

/// Forbids or allows access to memory. Does nothing without AddressSanitizer.
void SetPoisoned(const void* begin, std::size_t bytes, bool poisoned);

/// Returns the first changed byte of a guard, or null.
const std::byte* FindWrite(const std::byte* begin, const std::byte* end);

/// Runs the blocks of a kernel one after another on the calling thread of the host.
void RunBlocks(dim3 grid, dim3 block, std::size_t shared_bytes, void (*call)(const void* closure),
               const void* closure);

}  // namespace narrowfloat::cuda::emulation
