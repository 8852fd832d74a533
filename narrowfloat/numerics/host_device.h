// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks a function that gives the same bits in host code, in device code and in constant
/// evaluation.
#if defined(__CUDACC__)
#define NF_HD __host__ __device__
#else
#define NF_HD
#endif
