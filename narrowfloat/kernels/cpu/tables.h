// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "narrowfloat/kernels/gemm_kernels.h"
#include "narrowfloat/kernels/kernel_table.h"

namespace narrowfloat::cpu {

/// An instruction set that this build has and this machine can run: its name as NF_FORCE_BACKEND
/// spells it, and its index in Highway's dispatch order.
struct CpuTarget {
  std::string name;
  std::size_t index;
};
/// Returns all of them, best first.
std::vector<CpuTarget> AvailableTargets();

// The parts of a CPU table, one a file, each compiled once per instruction set. `target` is the
// CpuTarget::index. A null slot is left to the reference.
ByType<AmaxFn> AmaxTable(std::size_t target);
ByType<ColumnSumFn> ColumnSumTable(std::size_t target);
ByType<AmaxSumFn> AmaxSumTable(std::size_t target);
ByType<SumOrderFn> SumOrderTable(std::size_t target);
ByType<HadamardFn> HadamardTable(std::size_t target);
QuantizeSlots QuantizeWholeTable(std::size_t target);
QuantizeSlots QuantizePackedTable(std::size_t target);
QuantizeSlots QuantizeBlocksTable(std::size_t target);
DequantizeSlots DequantizeTable(std::size_t target);
// A body without rows is one that the target does not have.
GemmBody GemmFloatsBody(std::size_t target);
std::array<PanelPackers, ElementFormats::kSize> GemmFloatPackers(std::size_t target);
GemmBody GemmNibblesBody(std::size_t target);
PanelPackers GemmNibblePackers(std::size_t target);
std::array<FinishFn, kFloatTypeCount> GemmFinishTable(std::size_t target);

}  // namespace narrowfloat::cpu
