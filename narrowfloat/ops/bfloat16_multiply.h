// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace narrowfloat {

/// out = a times b in bfloat16 with sums in fp32, on the calling thread. Steps are in items; of
/// the two steps of a and of b one is 1.
struct BFloat16Product {
  std::size_t rows, cols, length;
  const void* a;
  std::size_t a_row_step, a_along_step;
  const void* b;
  std::size_t b_along_step, b_col_step;
  float* out;
  std::size_t out_row_step;
};

/// Computes a product; returns null, or why it could not as text that lives until the thread's next
/// call.
using BFloat16MultiplyFn = const char* (*)(const BFloat16Product* product);

/// Returns the function of the module that wraps oneDNN, which is loaded at the first call: the
/// file that NF_ONEDNN_MODULE names, else libnarrowfloat_onednn.so beside this library or where the
/// linker looks.
/// Errors: Unsupported if the module or oneDNN is not there, or if oneDNN would bring a second
/// OpenMP runtime into the process.
BFloat16MultiplyFn LoadBFloat16Multiply();

}  // namespace narrowfloat
