// SPDX-License-Identifier: Apache-2.0
// Exports the amax of a tile.
#include "narrowfloat/kernels/cpu/tables.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "narrowfloat/kernels/cpu/amax.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/amax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

ByType<AmaxFn> AmaxSlots() {
  return {};
}

#else

template <class... T>
constexpr ByType<AmaxFn> MakeAmax(TypeList<T...>) {
  return {&AmaxTile<T>::Run...};
}
ByType<AmaxFn> AmaxSlots() {
  return MakeAmax(FloatTypes{});
}

#endif

}  // namespace
}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace narrowfloat {
HWY_EXPORT(AmaxSlots);
namespace cpu {
ByType<AmaxFn> AmaxTable(std::size_t target) {
  return HWY_DISPATCH_TABLE(AmaxSlots)[target]();
}
}  // namespace cpu
}  // namespace narrowfloat
#endif
