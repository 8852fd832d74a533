// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "narrowfloat/kernels/gemm_kernels.h"
#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::cpu {

struct DecodeKernels;
struct ItemKernels;
struct MicroKernels;
struct PackKernels;

/// An instruction set that this build has and this machine can run: its name as NF_FORCE_BACKEND
/// spells it, and its index in Highway's dispatch order.
struct CpuTarget {
  std::string name;
  std::size_t index;
};
/// Returns all of them, best first.
std::vector<CpuTarget> AvailableTargets();

/// What the kernel files compute for one instruction set. A null slot is left to the reference.
struct TargetParts {
  ByType<AmaxFn> amax;
  ByType<ColumnSumFn> column_sum;
  ByType<AmaxSumFn> amax_sum;
  ByType<ColumnAmaxFn> column_amax;
  ByType<HadamardFn> hadamard;
  const ByType<ItemKernels>* items;
  const MicroKernels* micro;
  const ByType<PackKernels>* pack;
  const DecodeKernels* decode;
  QuantizeSlots quantize;
  DequantizeSlots dequantize;
  GemmKernels gemm;  // a body without rows is one that the target does not have
};
/// Returns the parts of a target, by CpuTarget::index; empty ones for the baseline.
TargetParts PartsOf(std::size_t target);

}  // namespace narrowfloat::cpu
