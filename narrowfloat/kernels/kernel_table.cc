// SPDX-License-Identifier: Apache-2.0
#include "narrowfloat/kernels/kernel_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>

#include "hwy/highway.h"
#include "hwy/targets.h"
#include "narrowfloat/kernels/cpu/cpu_table.h"
#include "narrowfloat/tensor/error.h"

namespace narrowfloat {
namespace {

/// Returns Highway's name of an instruction set as NF_FORCE_BACKEND spells it: "avx2", "avx3_dl".
std::string TargetName(std::int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

/// Returns a target's index in the tables of HWY_EXPORT, which have the same targets as this file.
std::size_t TargetIndex(std::int64_t target) {
  if constexpr ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

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

std::vector<cpu::CpuTarget> cpu::AvailableTargets() {
  std::vector<CpuTarget> targets;
  // A lower bit is a better instruction set.
  for (int bit = 0; bit < 62; ++bit) {
    const std::int64_t target = std::int64_t{1} << bit;
    if ((hwy::SupportedTargets() & HWY_TARGETS & target) == 0) continue;
    targets.push_back({TargetName(target), TargetIndex(target)});
  }
  return targets;
}

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
