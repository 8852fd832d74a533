// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a function that gives the same bits in host code, in device code and in constant
/// evaluation. NF_NOINLINE keeps a rarely called function out of line.
#if defined(__CUDACC__)
#define NF_HD __host__ __device__
#define NF_NOINLINE __noinline__
#else
#define NF_HD
#define NF_NOINLINE __attribute__((noinline))
#endif
