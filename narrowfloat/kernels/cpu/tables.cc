// SPDX-License-Identifier: Apache-2.0
// Collects the parts that the objects of each instruction set define.
#include "narrowfloat/kernels/cpu/tables.h"

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
namespace cpu {
TargetParts PartsOf(std::size_t target) {
  return HWY_DISPATCH_TABLE(Parts)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
