// SPDX-License-Identifier: Apache-2.0
// Exports the amax of a tile.
#include "narrowfloat/kernels/cpu/parts-inl.h"

#include "hwy/highway.h"
#include "narrowfloat/kernels/cpu/amax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace narrowfloat::HWY_NAMESPACE {
namespace {

template <class... T>
constexpr ByType<AmaxFn> MakeAmax(TypeList<T...>) {
  return {&AmaxTile<T>::Run...};
}

}  // namespace

ByType<AmaxFn> AmaxTable() {
  return MakeAmax(FloatTypes{});
}

}  // namespace narrowfloat::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
