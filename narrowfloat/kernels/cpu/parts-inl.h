// SPDX-License-Identifier: Apache-2.0
// Declares the parts of a CPU table. A kernel file includes this header first and defines some of
// them for one instruction set: the build sets NF_HWY_TARGET to it. cpu/tables.cc collects the
// parts: it includes this header once for each instruction set, which the guard permits.
#if defined(NARROWFLOAT_KERNELS_CPU_PARTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NARROWFLOAT_KERNELS_CPU_PARTS_INL_H_
#undef NARROWFLOAT_KERNELS_CPU_PARTS_INL_H_
#else
#define NARROWFLOAT_KERNELS_CPU_PARTS_INL_H_
#endif

#ifdef NF_HWY_TARGET
#include "hwy/detect_targets.h"
#undef HWY_TARGET
#define HWY_TARGET NF_HWY_TARGET
#endif
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/item_kernels.h"
#include "narrowfloat/kernels/cpu/pack_kernels.h"
#include "narrowfloat/kernels/cpu/tables.h"

HWY_BEFORE_NAMESPACE();
#if HWY_TARGET != HWY_SCALAR
namespace narrowfloat::HWY_NAMESPACE {

const ByType<cpu::ItemKernels>* ItemKernelsTable();
const cpu::MicroKernels* MicroKernelsTable();
const ByType<cpu::PackKernels>* PackKernelsTable();
const cpu::DecodeKernels* DecodeKernelsTable();
GemmBody GemmFloatsBody();
std::array<PanelPackers, ElementFormats::kSize> GemmFloatPackers();
GemmBody GemmNibblesBody();  // only on x86
ByType<FinishFn> GemmFinishTable();

}  // namespace narrowfloat::HWY_NAMESPACE
#endif
HWY_AFTER_NAMESPACE();

#endif
