// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace narrowfloat {

/// The product out = a times b of bfloat16 matrices, with sums in fp32. Steps are in items. One of
/// the two steps of each operand is 1, and out_row_step is at least `cols`: oneDNN requires this
/// even for one row.
struct BFloat16Product {
  std::size_t rows, cols, length;
  const void* a;
  std::size_t a_row_step, a_along_step;
  const void* b;
  std::size_t b_along_step, b_col_step;
  float* out;
  std::size_t out_row_step;
};

/// Computes a product on the calling thread. Returns null, or the reason of a failure as text that
/// is valid until the thread's next call.
using BFloat16MultiplyFn = const char* (*)(const BFloat16Product* product);

/// Returns the function of the module that wraps oneDNN. Loads the module at the first call: the
/// path in NF_ONEDNN_MODULE, else libnarrowfloat_onednn.so beside the program or library that this
/// function is linked into, or in the linker's path.
/// Errors: Unsupported if the module or oneDNN is missing, or if oneDNN would load a second
/// OpenMP runtime into the process.
BFloat16MultiplyFn LoadBFloat16Multiply();

}  // namespace narrowfloat
