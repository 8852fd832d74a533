// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/kernel_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <string>

#include "narrowfloat/kernels/cpu/cpu_table.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

// Tables are never destroyed, because threads may still use them while the program ends.

std::vector<const KernelTable*> BuildTables() {
  std::vector<const KernelTable*> available;
  for (const cpu::CpuTarget& target : cpu::AvailableTargets())
    available.push_back(new cpu::CpuTable(target));
  available.push_back(&ScalarKernels());
  return available;
}

const KernelTable& ChooseKernels() {
  const std::vector<const KernelTable*>& available = AvailableKernels();
  const char* forced = std::getenv("NF_FORCE_BACKEND");
  if (forced == nullptr || *forced == '\0') return *available.front();
  std::vector<std::string_view> names;
  for (const KernelTable* table : available) {
    if (table->name == forced) return *table;
    names.push_back(table->name);
  }
  throw Unsupported(fmt::format("NF_FORCE_BACKEND: '{}' cannot run here; this machine has: {}",
                                forced, fmt::join(names, ", ")));
}

}  // namespace

const KernelTable& ScalarKernels() {
  static const KernelTable& table = *new KernelTable("scalar");
  return table;
}

const std::vector<const KernelTable*>& AvailableKernels() {
  static const auto& available = *new std::vector<const KernelTable*>(BuildTables());
  return available;
}

const KernelTable& ActiveKernels() {
  static const KernelTable& active = ChooseKernels();
  return active;
}

}  // namespace narrowfloat
