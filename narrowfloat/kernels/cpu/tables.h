// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "narrowfloat/kernels/gemm_kernels.h"
#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::cpu {

struct DecodeKernels;
struct ItemKernels;
struct MicroKernels;
struct PackKernels;

/// The micro-kernels of one instruction set.
struct TargetParts {
  const ByType<ItemKernels>* items;
  const MicroKernels* micro;
  const ByType<PackKernels>* pack;
  const DecodeKernels* decode;
  GemmKernels gemm;  // a body with 0 rows: the target does not have this body
};

/// An instruction set that this build has and this machine can run: its name as NF_FORCE_BACKEND
/// spells it, and its micro-kernels.
struct CpuTarget {
  std::string name;
  TargetParts parts;
};
/// Returns all such instruction sets, best first, without the baseline.
std::vector<CpuTarget> AvailableTargets();

}  // namespace narrowfloat::cpu
