// SPDX-License-Identifier: Apache-2.0
// Collects the parts that the objects of each instruction set define.
#include "narrowfloat/kernels/cpu/tables.h"

#include <algorithm>
#include <cctype>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/tables.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/parts-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

cpu::TargetParts Parts() {
  return {};
}

#else

cpu::TargetParts Parts() {
  return {
      .items = ItemKernelsTable(),
      .micro = MicroKernelsTable(),
      .pack = PackKernelsTable(),
      .decode = DecodeKernelsTable(),
      .gemm =
          {
              .floats = GemmFloatsBody(),
#if HWY_ARCH_X86
              .nibbles = GemmNibblesBody(),
#else
              .nibbles = {},
#endif
              .finish = GemmFinishTable(),
          },
  };
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(Parts);
namespace {

/// Returns Highway's name of an instruction set as NF_FORCE_BACKEND spells it: "avx2", "avx3_dl".
std::string TargetName(std::int64_t target) {
  std::string name = hwy::TargetName(target);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

/// Returns a target's index in the tables of HWY_EXPORT.
std::size_t TargetIndex(std::int64_t target) {
  if constexpr ((HWY_TARGETS & (HWY_TARGETS - 1)) == 0) return 0;
  hwy::ChosenTarget chosen;
  chosen.Update(target);
  return chosen.GetIndex();
}

}  // namespace

std::vector<cpu::CpuTarget> cpu::AvailableTargets() {
  std::vector<CpuTarget> targets;
  // A lower bit is a better instruction set. Bit 62 is the baseline, whose table is empty.
  for (int bit = 0; bit < 62; ++bit) {
    const std::int64_t target = std::int64_t{1} << bit;
    if ((hwy::SupportedTargets() & HWY_TARGETS & target) == 0) continue;
    targets.push_back({TargetName(target), HWY_DISPATCH_TABLE(Parts)[TargetIndex(target)]()});
  }
  return targets;
}

}  // namespace narrowfloat
#endif
