// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/speed/workload.h"

namespace narrowfloat::speed {

/// Arguments of core_bench.
struct Options {
  std::int64_t rows = 8192, cols = 4096;
  int repetitions = 25;
  int threads = 1;
  int compare_threads = 0;         // 0: none
  std::size_t compare_offset = 0;  // bytes past a cache line; 0: none
  std::vector<std::string> filters{"bfloat16"};
  std::vector<std::string> backends;
  Data data = Data::kGaussian;
  bool json = false;
};

/// Returns true if kernels of that backend are selected.
bool IsWanted(std::string_view backend, const Options& options);

/// Returns true if the workload's backend and name are selected.
bool IsWanted(const Workload& workload, const Options& options);

// One file per mode; each prints what it found.

/// Prints each kernel's share of its stream's speed, and the gain of more threads.
void PrintShares(const Options& options);

/// Prints the size from which on `compare_threads` are faster than `threads`.
void PrintCrossover(const Options& options);

/// Measures how much longer quantization takes with the sums of columns.
void PrintDbias(const Options& options);

/// Measures products of quantized matrices in both modes.
void PrintProducts(const Options& options);

/// Measures what a call costs on a tensor so small that its elements hardly count.
void PrintOverhead(const Options& options);

}  // namespace narrowfloat::speed
