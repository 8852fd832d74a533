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
/// Returns all such instruction sets, best first.
std::vector<CpuTarget> AvailableTargets();

/// The micro-kernels of one instruction set.
struct TargetParts {
  const ByType<ItemKernels>* items;
  const MicroKernels* micro;
  const ByType<PackKernels>* pack;
  const DecodeKernels* decode;
  GemmKernels gemm;  // a body with 0 rows: the target does not have this body
};
/// Returns the parts of the target with this CpuTarget::index; null and empty for the baseline.
TargetParts PartsOf(std::size_t target);

}  // namespace narrowfloat::cpu
